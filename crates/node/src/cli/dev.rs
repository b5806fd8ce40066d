//! `punctual dev`: one command to everything. A private Redis with its data in `./.punctual`, and one node on it.
//!
//! Ctrl-C drains the node first and stops Redis after it; the data stay for the next time. One `dev` per directory: a second
//! one is refused, and a Redis that a killed `dev` left behind is stopped before its data are used again.

mod find;
mod place;
mod server;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use punctual_core::config::{Config, Layers, Loaded, Override};
use punctual_core::store::Store;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use self::place::Place;
use self::server::Server;
use super::failure::Failure;
use super::output::note;
use super::session::{Session, block_on};

const EXAMPLE: &str = "\
Examples:
  punctual dev
  punctual dev --port 8080 --data /tmp/punctual

Needs redis-server 7.0 or newer, or valkey-server 7.2 or newer, on PATH or in $REDIS_SERVER.";

/// Starts a private Redis and one node on it, to try things; Ctrl-C stops both, the data stay.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Port of the HTTP API on 127.0.0.1; 0 takes a free one.
    #[arg(long, value_name = "N")]
    port: Option<u16>,

    /// Directory of Redis' data.
    #[arg(long, value_name = "DIR", default_value = ".punctual")]
    data: PathBuf,
}

/// What is running, and how to reach it.
#[derive(Serialize)]
struct Document {
    url: Option<String>,
    redis: String,
    data: PathBuf,
    server: String,
}

pub(super) fn run(session: &Session, args: &Args) -> Result<ExitCode, Failure> {
    if session.globals.redis.is_some() {
        return Err(Failure::usage("--redis: dev brings a Redis of its own; punctual node runs on another one"));
    }
    let program = find::server()?;
    let place = Place::prepare(&args.data)?;
    let loaded = load(session, args, &place)?;
    let mut server = Server::start(&program, &place)?;
    if !wait_until_ready(&mut server, &loaded.config)? {
        return Ok(ExitCode::SUCCESS);
    }
    greet(session, &loaded.config, &place, &program.name)?;
    let watched = server.watch();
    let code = crate::run::node(loaded, session.all_handlers());
    watched.stop();
    Ok(code)
}

/// The configuration of the node: the user's, but for where Redis is.
fn load(session: &Session, args: &Args, place: &Place) -> Result<Loaded, Failure> {
    let mut layers: Layers = session.layers().command_default("dev", "handlers.demo", "true");
    // A login, a certificate or replicas that the configuration has for another Redis mean nothing to this one.
    let own = [
        ("redis.url", place.url()),
        ("redis.username", ""),
        ("redis.password_file", ""),
        ("redis.ca_file", ""),
        ("redis.wait_replicas", "0"),
    ];
    layers.flags.extend(own.map(|(key, value)| Override {
        key: key.to_owned(),
        value: value.to_owned(),
        origin: "punctual dev".to_owned(),
    }));
    if let Some(port) = args.port {
        // The address is printed before the node binds it, so a free port is chosen here.
        let port = if port == 0 { free_port()? } else { port };
        layers = layers.flag("--port", "http.listen", format!("127.0.0.1:{port}"));
    }
    Config::load(&layers).map_err(|errors| Failure::config(&errors))
}

/// A port of 127.0.0.1 that nobody has at this moment.
fn free_port() -> Result<u16, Failure> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|error| Failure::failed(format!("find a free port: {error}")))
}

/// Waits until Redis has read its data; `false` when a signal came first, and Redis is stopped then.
fn wait_until_ready(server: &mut Server, config: &Config) -> Result<bool, Failure> {
    block_on(async {
        let refused = |error: std::io::Error| Failure::failed(format!("listen for signals: {error}"));
        let (mut term, mut int) =
            (signal(SignalKind::terminate()).map_err(refused)?, signal(SignalKind::interrupt()).map_err(refused)?);
        let store = Store::new(&config.redis).map_err(|error| Failure::redis("connect", &config.redis.url, &error))?;
        let started = Instant::now();
        let mut told = false;
        loop {
            match store.probe().await {
                Ok(_) => return Ok(true),
                Err(error) if !error.is_transient() => {
                    return Err(Failure::redis("use the new Redis", &config.redis.url, &error));
                }
                Err(_) => server.still_runs()?,
            }
            if !told && started.elapsed() > Duration::from_secs(3) {
                told = true;
                note("Redis is reading its data …");
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
                _ = term.recv() => return Ok(false),
                _ = int.recv() => return Ok(false),
            }
        }
    })
}

fn greet(session: &Session, config: &Config, place: &Place, program: &str) -> Result<(), Failure> {
    let document = Document {
        url: config.http.listen.addr().map(|address| format!("http://{address}/")),
        redis: place.url().to_owned(),
        data: place.dir().to_owned(),
        server: program.to_owned(),
    };
    session.out.show(&document, |_| {
        let http = document.url.as_deref().unwrap_or("off (http.listen = none)");
        let mut text = format!(
            "\n  http       {http}\n  redis      {} ({program})\n  data       {}\n",
            document.redis,
            document.data.display()
        );
        let mut flags = format!("--redis '{}'", document.redis);
        if config.redis.namespace != "punctual" {
            flags.push_str(&format!(" --namespace {}", config.redis.namespace));
        }
        let first =
            if config.handlers.demo { "enqueue demo.sleep --args '{\"ms\":1000}' --delay 5s --wait" } else { "nodes list" };
        text.push_str(&format!("\nIn another terminal:\n  punctual {first} {flags}\n\nCtrl-C stops the node, then Redis.\n"));
        text
    })
}
