//! punctual's core: what a job is, how its life goes on, and the Redis store that keeps it.
//!
//! A service that only enqueues needs [`client`]; a node of the cluster adds `punctual-node`. See `ARCHITECTURE.md` for the map.

pub mod backoff;
pub mod client;
pub mod clock;
pub mod codec;
pub mod config;
pub mod duration;
pub mod handler;
pub mod job;
pub mod policy;
pub mod state;
pub mod store;
