//! Nodes as processes on a real Redis, and what happens to them: kill -9, pauses, signals, lost replies, a Redis that forgets,
//! dies or stays away, handlers that panic, spin or abort.
//!
//! What ran is told by witnesses: programs that write a line when they start. What became of a job is told by the command line.

mod deaths;
mod handlers;
mod lease;
mod log_events;
mod lost_replies;
mod network;
mod queues;
mod reaper;
mod records;
mod redis_faults;
mod scene;
mod shutdown;
mod startup;
