//! A node of the cluster: its actors, its HTTP server, and the commands around it.

pub mod status;
