//! What a command prints: one JSON document, or text for people; notes and questions go to standard error.
//!
//! Tables have lines and colours on a terminal (no colours under `NO_COLOR` or `TERM=dumb`) and are plain aligned text
//! elsewhere. A reader that has gone away (`| head`) ends nothing: the command does what it was asked all the same.

use std::io::{self, BufRead, IsTerminal, Write};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, presets};
use serde::Serialize;

use super::failure::Failure;

/// The form of what is printed on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// One stable JSON document.
    Json,
}

/// Where and how a command prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    format: Format,
    terminal: bool,
    colour: bool,
}

impl Output {
    /// Looks at standard output and the environment.
    pub(crate) fn new(format: Format) -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let colour = terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
        Self { format, terminal, colour }
    }

    /// Whether documents are wanted.
    pub(crate) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Prints the document, or the text that `human` makes of it.
    pub(crate) fn show<T: Serialize>(self, document: &T, human: impl FnOnce(Self) -> String) -> Result<(), Failure> {
        match self.format {
            Format::Table => self.text(&human(self)),
            Format::Json => {
                let text =
                    serde_json::to_string_pretty(document).map_err(|error| Failure::failed(format!("write JSON: {error}")))?;
                self.text(&text)
            }
        }
    }

    /// Prints text and ends the line.
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let written =
            stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(end.as_bytes())).and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(format!("write the output: {error}"))),
            _ => Ok(()),
        }
    }

    /// The text of a table.
    pub(crate) fn table(self, header: &[&str], rows: &[Vec<String>]) -> String {
        if !self.terminal {
            return aligned(header, rows);
        }
        let mut table = comfy_table::Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(header.iter().map(|title| {
            let cell = Cell::new(title);
            if self.colour { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        for row in rows {
            table.add_row(row.iter().map(|text| {
                let cell = Cell::new(clean(text));
                match colour_of(text).filter(|_| self.colour) {
                    Some(colour) => cell.fg(colour),
                    None => cell,
                }
            }));
        }
        format!("{table}\n")
    }
}

/// Prints a line on standard error, where progress and remarks go.
pub(crate) fn note(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Asks before something is lost. Where nobody can answer, only `--yes` goes on: a script must say what it means.
pub(crate) fn confirm(yes: bool, question: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!("{question} Nobody can be asked here: say --yes")));
    }
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{question} [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        Ok(())
    } else {
        Err(Failure::failed("not confirmed, nothing was changed"))
    }
}

/// Text of a job or a handler as it may stand on a terminal: nothing in it can move the cursor, change colours or turn the
/// direction of writing.
pub(crate) fn clean(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || turns(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// The words of the contract that deserve a second look, or none.
fn colour_of(word: &str) -> Option<Color> {
    match word {
        "succeeded" | "ok" | "yes" => Some(Color::Green),
        "running" | "ready" => Some(Color::Cyan),
        "retrying" | "paused" | "draining" | "snoozed" | "handed_back" => Some(Color::Yellow),
        "held" => Some(Color::Magenta),
        "dead" | "failed" | "timed_out" | "panicked" | "crashed" | "wrong" | "silent" => Some(Color::Red),
        "cancelled" => Some(Color::DarkGrey),
        _ => None,
    }
}

/// Columns of equal width, two spaces apart, without space at the end of a line.
fn aligned(header: &[&str], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = header.iter().map(|title| title.to_uppercase()).collect();
    let lines: Vec<Vec<String>> =
        std::iter::once(titles).chain(rows.iter().map(|row| row.iter().map(|t| clean(t)).collect())).collect();
    let width =
        |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let pad = width - cell.chars().count() + 2;
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', pad));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piped_tables_are_aligned_text_without_lines() {
        let rows = vec![vec!["mail".to_owned(), "12".to_owned()], vec!["default".to_owned(), String::new()]];
        assert_eq!(aligned(&["queue", "ready"], &rows), "QUEUE    READY\nmail     12\ndefault\n");
    }

    #[test]
    fn nothing_in_a_cell_reaches_the_terminal_as_a_command() {
        assert_eq!(clean("a\u{1b}[31mb\nc\u{202e}d"), "a\\u{1b}[31mb\\nc\\u{202e}d");
        assert_eq!(clean("größe 任务"), "größe 任务");
    }

    #[test]
    fn tables_on_a_terminal_obey_no_colour() {
        let rows = vec![vec!["succeeded".to_owned()]];
        let output = Output { format: Format::Table, terminal: true, colour: false };
        let text = output.table(&["state"], &rows);
        assert!(text.contains('│') && !text.contains('\u{1b}'), "{text}");
    }
}
