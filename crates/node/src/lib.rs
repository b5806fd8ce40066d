//! A node of the cluster: its actors, its HTTP server, and the commands around it.

pub mod actors;
pub mod admission;
pub mod cli;
pub mod execute;
pub mod http;
pub mod membership;
pub mod metrics;
pub mod pool;
pub mod run;
pub mod status;
pub mod telemetry;
