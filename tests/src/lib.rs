//! The harness of punctual's tests: real servers, real processes, real faults.
//!
//! | Module | Gives a test |
//! |---|---|
//! | [`redis_server`], [`redis_options`] | a Redis of its own that it may kill, restart and freeze, or the shared one with a fresh namespace |
//! | [`proxy`] | a network between client and Redis that loses, delays, refuses, or cuts between a request and its reply |
//! | [`node`] | a `punctual node` process with settings, log lines and signals |
//! | [`cli`] | `punctual …` commands: exit code, JSON document, text |
//! | [`http`] | requests with a token: status, headers, body |
//! | [`snapshot`] | all keys of a namespace as values, and what differs between two of them |
//! | [`wait`] | bounded waits for a condition; seeds for random tests |
//! | [`log`], [`process`], [`binary`], [`port`], [`resp`] | what the others stand on |
//!
//! A test of the cluster reads about like this:
//!
//! ```no_run
//! use std::time::Duration;
//! use punctual_tests::{Cli, NodeProcess, Proxy, RedisServer, command, eventually, fresh_namespace};
//!
//! # async fn lost_reply_loses_no_job() -> anyhow::Result<()> {
//! let (redis, ns) = (RedisServer::shared().await?, fresh_namespace());
//! let proxy = Proxy::start(redis.port())?;
//! let node = NodeProcess::builder(&redis.url_via(proxy.port()), &ns).quick().start().await?;
//! let cut = proxy.cut_reply(command("BRPOPLPUSH"), 1);
//! let cli = Cli::new(&redis.url(), &ns);
//! let id = cli.run(&["enqueue", "demo.noop"]).await?.ok()?["id"].as_str().unwrap_or_default().to_owned();
//! eventually(Duration::from_secs(15), "the job to succeed", async || {
//!     let job = cli.run(&["jobs", "show", &id]).await.ok()?;
//!     (job.json["state"] == "succeeded").then_some(())
//! })
//! .await?;
//! assert_eq!(cut.fired(), 1);
//! node.term()?;
//! assert!(node.wait_exit(Duration::from_secs(30)).await?.success());
//! # Ok(())
//! # }
//! ```
//!
//! Rules:
//!
//! - Tests run in parallel: each has its own namespace, and its own server if it harms it. Nobody uses port 6379.
//! - Waits are bounded and wait for something; a random test prints its seed and how to repeat it.
//! - Children die with the test process, also when that is killed.
//! - The binary is not built by `cargo test -p punctual-tests`: run `cargo build -p punctual-node` before, after
//!   every change of the product, or set `PUNCTUAL_BIN`.
//! - Nothing here depends on the product's crates, so the harness cannot share their mistakes.

pub mod binary;
pub mod cli;
pub mod http;
pub mod log;
pub mod node;
pub mod port;
pub mod process;
pub mod proxy;
pub mod redis_options;
pub mod redis_server;
pub mod resp;
pub mod snapshot;
pub mod wait;

pub use cli::{Cli, CliOutput};
pub use http::{Http, Response};
pub use log::{Log, message};
pub use node::{NODE_TIMEOUT, NodeBuilder, NodeProcess};
pub use proxy::{Proxy, Rule, any_command, command, command_with, script_call};
pub use redis_options::{Aof, RedisOptions};
pub use redis_server::{RedisServer, fresh_namespace};
pub use snapshot::Snapshot;
pub use wait::{Seed, eventually, holds};
