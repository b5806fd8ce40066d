//! The front door of a proxy: accepts connections, refuses them without giving up the port, closes all.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc as std_mpsc};

use anyhow::{Context as _, Result};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Shared, connection};
use crate::port::free_port;

pub(super) enum Order {
    Accept,
    Refuse,
    Cut,
}

// Each order is confirmed when it is carried out.
pub(super) type Orders = mpsc::UnboundedSender<(Order, std_mpsc::Sender<()>)>;

// A socket that holds the port but refuses connections until it listens.
fn hold(port: u16) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    Ok(socket)
}

pub(super) fn listen() -> Result<(std::net::TcpListener, u16)> {
    let mut last = None;
    for _ in 0..5 {
        let port = free_port()?;
        match std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok((listener, port));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no try was made")?.into())
}

enum Door {
    Open(TcpListener),
    Shut(TcpSocket),
}

impl Door {
    async fn accept(&self) -> std::io::Result<TcpStream> {
        match self {
            Self::Open(listener) => Ok(listener.accept().await?.0),
            Self::Shut(_) => pending().await,
        }
    }

    fn turn(self, port: u16, open: bool) -> std::io::Result<Self> {
        match self {
            // The listener is closed first, because nobody may bind beside one.
            Self::Open(listener) if !open => {
                drop(listener);
                Ok(Self::Shut(hold(port)?))
            }
            Self::Shut(socket) if open => Ok(Self::Open(socket.listen(1024)?)),
            same => Ok(same),
        }
    }
}

pub(super) async fn run(
    listener: std::net::TcpListener,
    port: u16,
    shared: &Arc<Shared>,
    mut orders: mpsc::UnboundedReceiver<(Order, std_mpsc::Sender<()>)>,
) {
    let mut door = Door::Open(TcpListener::from_std(listener).expect("a fresh listener is accepted by the runtime"));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((order, done)) = order else { return };
                match order {
                    Order::Accept | Order::Refuse => {
                        door = door.turn(port, matches!(order, Order::Accept)).expect("the port is held");
                    }
                    Order::Cut => connections.shutdown().await,
                }
                // Whoever gave the order may have been dropped.
                let _ = done.send(());
            }
            client = door.accept() => {
                let Ok(client) = client else { continue };
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(shared);
                connections.spawn(async move {
                    let _open = Open::new(&shared);
                    connection::serve(client, &shared).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

// Counts a connection for as long as it lives, also when its task is aborted.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        Self(&shared.open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
