//! Cuts a stream into chunks of lines, with bounded memory: a line that is longer than it may be is dropped as it comes.

use std::io::{self, BufRead, BufReader, Read};

use tokio::sync::mpsc;

/// One line that is not blank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Its number in the file, from 1.
    pub(super) number: u64,
    /// Its text, or why it is none.
    pub(super) text: Result<String, String>,
}

/// Lines for one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) lines: Vec<Line>,
    /// Bytes of the stream that it covers.
    pub(super) bytes: u64,
}

/// Reads to the end, or until nobody takes chunks any more. `full` is how many lines and bytes fill a chunk.
pub(super) fn read(input: impl Read, longest: usize, full: (usize, usize), to: &mpsc::Sender<Chunk>) -> io::Result<()> {
    let mut input = BufReader::with_capacity(256 * 1024, input);
    let mut cutter = Cutter { longest, number: 1, line: Vec::new(), cut: false, chunk: Chunk::default(), held: 0 };
    loop {
        // What has come must not wait for what may never come.
        let waits = input.buffer().is_empty();
        if ((waits && !cutter.chunk.lines.is_empty()) || cutter.is_full(full)) && to.blocking_send(cutter.take()).is_err() {
            return Ok(());
        }
        let buffer = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if buffer.is_empty() {
            cutter.end_line();
            let last = cutter.take();
            if last != Chunk::default() {
                let _ = to.blocking_send(last);
            }
            return Ok(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        cutter.add(&buffer[..end.unwrap_or(used)]);
        if end.is_some() {
            cutter.end_line();
        }
        cutter.chunk.bytes += u64::try_from(used).unwrap_or(u64::MAX);
        input.consume(used);
    }
}

struct Cutter {
    longest: usize,
    number: u64,
    line: Vec<u8>,
    /// Whether the line was longer than it may be.
    cut: bool,
    chunk: Chunk,
    /// Bytes in the chunk's lines.
    held: usize,
}

impl Cutter {
    fn is_full(&self, (lines, bytes): (usize, usize)) -> bool {
        self.chunk.lines.len() >= lines || self.held >= bytes
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = self.longest - self.line.len().min(self.longest);
        self.cut |= bytes.len() > room;
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = if std::mem::take(&mut self.cut) {
            Err(format!("the line is longer than {} bytes", self.longest))
        } else {
            String::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())
        };
        if text.as_ref().map_or(true, |text| !text.trim().is_empty()) {
            self.held += text.as_ref().map_or(0, String::len);
            self.chunk.lines.push(Line { number: self.number, text });
        }
        self.number += 1;
    }

    fn take(&mut self) -> Chunk {
        self.held = 0;
        std::mem::take(&mut self.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(input: &[u8], longest: usize, full: (usize, usize)) -> Vec<Chunk> {
        let (to, mut from) = mpsc::channel(1000);
        read(input, longest, full, &to).unwrap();
        drop(to);
        std::iter::from_fn(|| from.blocking_recv()).collect()
    }

    #[test]
    fn chunks_hold_so_many_lines_and_every_byte_once() {
        let input = "a\n\n b \r\nc\nd\n";
        let chunks = chunks(input.as_bytes(), 10, (2, 1000));
        let lines: Vec<Vec<(u64, &str)>> = chunks
            .iter()
            .map(|chunk| chunk.lines.iter().map(|line| (line.number, line.text.as_deref().unwrap())).collect())
            .collect();
        assert_eq!(lines, [vec![(1, "a"), (3, " b \r")], vec![(4, "c"), (5, "d")]]);
        assert_eq!(chunks.iter().map(|chunk| chunk.bytes).sum::<u64>(), input.len() as u64);
    }

    #[test]
    fn lines_too_long_or_not_text_are_told_and_the_next_one_is_read() {
        let chunks = chunks(b"123456789\n\xff\nok\n", 5, (10, 1000));
        let texts: Vec<bool> = chunks.iter().flat_map(|chunk| &chunk.lines).map(|line| line.text.is_ok()).collect();
        assert_eq!(texts, [false, false, true]);
    }

    #[test]
    fn bytes_fill_a_chunk_before_its_lines_do() {
        let input = "x".repeat(60) + "\n";
        assert_eq!(chunks(input.repeat(4).as_bytes(), 100, (500, 100)).iter().filter(|one| !one.lines.is_empty()).count(), 2);
    }

    #[test]
    fn what_has_come_is_handed_on_while_the_rest_is_awaited() {
        let (ours, theirs) = std::io::pipe().unwrap();
        let (to, mut from) = mpsc::channel(10);
        let reader = std::thread::spawn(move || read(ours, 100, (500, 1000), &to));
        std::io::Write::write_all(&mut &theirs, b"first\npart").unwrap();
        let chunk = from.blocking_recv().unwrap();
        assert_eq!(chunk.lines.len(), 1);
        drop(theirs);
        assert_eq!(from.blocking_recv().unwrap().lines[0].text.as_deref(), Ok("part"));
        reader.join().unwrap().unwrap();
    }
}
