//! What the demo prints: lines that stay, and below them one bar that moves, on a terminal only.
//!
//! Colours are left out when the output is no terminal or `NO_COLOR` is set.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Without a terminal, progress is a line at most this often.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// The terminal, or whatever stands in for it.
pub struct Screen {
    bar: Option<ProgressBar>,
    colour: bool,
    plain: Mutex<Option<Instant>>,
}

/// How a piece of text looks.
#[derive(Clone, Copy)]
pub enum Ink {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Cyan,
}

impl Ink {
    const fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Cyan => "36",
        }
    }
}

impl Screen {
    pub fn new() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { bar: terminal.then(|| bar(colour)), colour, plain: Mutex::new(None) }
    }

    /// The text in this colour, or as it is.
    pub fn ink(&self, ink: Ink, text: impl Display) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", ink.code()) } else { text.to_string() }
    }

    /// A line, or several, that stay.
    pub fn say(&self, text: impl AsRef<str>) {
        let write = || {
            // A reader that went away, as `| head` does, is no reason to leave processes behind by a panic.
            let _ = writeln!(std::io::stdout().lock(), "{}", text.as_ref());
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// How far everything is.
    pub fn progress(&self, done: usize, total: usize, message: &str) {
        if let Some(bar) = &self.bar {
            if total > 0 && bar.is_hidden() {
                bar.set_draw_target(ProgressDrawTarget::stdout());
            }
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_message(message.to_owned());
            return;
        }
        let mut last = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            *last = Some(Instant::now());
            drop(last);
            self.say(format!("         {done} of {total} jobs are through · {message}"));
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(colour: bool) -> ProgressBar {
    let template = if colour {
        "{elapsed:>5.dim} {bar:28.green/black.bright} {pos:>4}/{len} · {wide_msg}"
    } else {
        "{elapsed:>5} {bar:28} {pos:>4}/{len} · {wide_msg}"
    };
    let style = ProgressStyle::with_template(template).expect("the template is well-formed").progress_chars("━╸─");
    // Shown when there is something to show.
    ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden()).with_style(style)
}
