//! The actors of a node, one file each. An actor file reads from top to bottom: what it does and how it fails, its messages, one
//! pass as a function that needs no actor, then the thin actor around it.

pub mod heartbeat;
pub mod promoter;
pub mod reaper;
pub mod supervisor;
pub mod worker_pool;
