//! One proxied connection: two lines with weather on them, a reader of requests and a reader of replies.
//!
//! Replies belong to requests by order alone, so each forwarded request leaves a note about what becomes of its
//! reply. On a connection that subscribes, messages come unasked; they then use up notes of later requests, so rules
//! that cut or answer are exact only on connections without a subscription.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::rules::RuleState;
use super::{Flow, Shared, Weather};
use crate::resp::{Frames, arguments};

// Chunks on their way; a slow reader holds back the writer behind them, as a real line does.
const IN_FLIGHT: usize = 256;

// What becomes of the reply to a request.
pub(super) enum Fate {
    Forward,
    // Never sent to the server; the client gets this instead.
    Answer(Vec<u8>),
    // Executed by the server; its reply is swallowed and the connection ends.
    Cut(Arc<RuleState>),
}

enum Item {
    Bytes(Instant, Vec<u8>),
    // There is an answer to give although the server sent nothing.
    Wake,
    End,
}

pub(super) async fn serve(client: TcpStream, shared: &Shared) {
    // Set when bytes were lost. Real networks lose the rest of a stream too, so this connection never works again.
    let lost = AtomicBool::new(shared.weather().flow == Flow::BlackHole);
    let server = if lost.load(Ordering::SeqCst) {
        None
    } else {
        match TcpStream::connect(shared.target()).await {
            Ok(server) => Some(server),
            Err(_) => return,
        }
    };
    let _ = client.set_nodelay(true);
    let (client_in, client_out) = client.into_split();
    let Some(server) = server else {
        // Not connected to the server at all; what the client sends goes nowhere until it gives up.
        let (line, items) = mpsc::channel(IN_FLIGHT);
        let mut dead_end = Line { items, weather: shared.weather.subscribe(), lost: &lost };
        let _ = tokio::join!(read(client_in, line), dead_end.next());
        return;
    };
    let _ = server.set_nodelay(true);
    let (server_in, server_out) = server.into_split();
    let notes = Mutex::new(VecDeque::new());
    let (up, up_items) = mpsc::channel(IN_FLIGHT);
    let (down, down_items) = mpsc::channel(IN_FLIGHT);
    let wake = down.clone();
    let up_line = Line { items: up_items, weather: shared.weather.subscribe(), lost: &lost };
    let down_line = Line { items: down_items, weather: shared.weather.subscribe(), lost: &lost };
    let requests = async { tokio::try_join!(read(client_in, up), requests(shared, &notes, up_line, server_out, wake)) };
    let replies = async { tokio::try_join!(read(server_in, down), replies(&notes, down_line, client_out)) };
    // Whichever side ends first, both sockets are closed here.
    let ended = tokio::select! {
        ended = requests => ended,
        ended = replies => ended,
    };
    if let Some(error) = ended.err().filter(|error| error.kind() == ErrorKind::InvalidData) {
        eprintln!("proxy: connection ended: {error}");
    }
}

// From a socket onto a line. A reset is an end like any other: what came before it still arrives.
async fn read(mut socket: OwnedReadHalf, line: mpsc::Sender<Item>) -> Result<()> {
    loop {
        let mut chunk = Vec::with_capacity(16 * 1024);
        let ended = !matches!(socket.read_buf(&mut chunk).await, Ok(1..));
        let item = if ended { Item::End } else { Item::Bytes(Instant::now(), chunk) };
        if line.send(item).await.is_err() || ended {
            return Ok(());
        }
    }
}

// One direction: bytes come out later, not at all, or when the weather allows.
struct Line<'a> {
    items: mpsc::Receiver<Item>,
    weather: watch::Receiver<Weather>,
    lost: &'a AtomicBool,
}

impl Line<'_> {
    // The next bytes, possibly none; `None` at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let item = self.items.recv().await.unwrap_or(Item::End);
            if let Item::Bytes(read_at, _) = &item {
                let delay = self.weather.borrow().delay;
                sleep_until(*read_at + delay).await;
            }
            // The proxy outlives its connections, so the weather never ends.
            let _ = self.weather.wait_for(|weather| weather.flow != Flow::Stall).await;
            if self.weather.borrow().flow == Flow::BlackHole {
                self.lost.store(true, Ordering::SeqCst);
            }
            let lost = self.lost.load(Ordering::SeqCst);
            match item {
                Item::Bytes(_, bytes) if !lost => return Some(bytes),
                Item::Wake if !lost => return Some(Vec::new()),
                Item::Bytes(..) | Item::Wake => {}
                Item::End => {
                    // The other side learns of the end only when the network is back.
                    let _ = self.weather.wait_for(|weather| weather.flow != Flow::BlackHole).await;
                    return None;
                }
            }
        }
    }
}

type Notes = Mutex<VecDeque<Fate>>;

async fn requests(
    shared: &Shared,
    notes: &Notes,
    mut line: Line<'_>,
    mut server: OwnedWriteHalf,
    wake: mpsc::Sender<Item>,
) -> Result<()> {
    let mut frames = Frames::requests();
    while let Some(bytes) = line.next().await {
        frames.push(&bytes);
        let mut out = Vec::new();
        while let Some(frame) = frames.next_frame()? {
            let args = arguments(&frame)?;
            if args.is_empty() {
                out.extend(frame);
                continue;
            }
            let (fate, delay) = shared.judge(&args);
            if !delay.is_zero() {
                server.write_all(&std::mem::take(&mut out)).await?;
                sleep(delay).await;
            }
            let answer = matches!(fate, Fate::Answer(_));
            notes.lock().unwrap_or_else(PoisonError::into_inner).push_back(fate);
            if answer {
                // A full line wakes the reader of replies as well.
                let _ = wake.try_send(Item::Wake);
            } else {
                out.extend(frame);
            }
        }
        server.write_all(&out).await?;
    }
    Ok(())
}

async fn replies(notes: &Notes, mut line: Line<'_>, mut client: OwnedWriteHalf) -> Result<()> {
    let mut frames = Frames::replies();
    while let Some(bytes) = line.next().await {
        frames.push(&bytes);
        let mut out = answers(notes);
        while let Some(frame) = frames.next_frame()? {
            let fate = notes.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(Fate::Cut(rule)) = fate {
                client.write_all(&out).await?;
                rule.fire();
                return Err(Error::new(ErrorKind::ConnectionAborted, "cut by a rule"));
            }
            out.extend(frame);
            out.extend(answers(notes));
        }
        client.write_all(&out).await?;
    }
    Ok(())
}

// The answers whose turn it is.
fn answers(notes: &Notes) -> Vec<u8> {
    let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = Vec::new();
    while let Some(Fate::Answer(text)) = notes.front() {
        out.extend_from_slice(text);
        notes.pop_front();
    }
    out
}
