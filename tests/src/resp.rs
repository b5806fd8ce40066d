//! Redis' wire format (RESP2), cut into whole requests and whole replies as the bytes arrive.
//!
//! Only the borders are found and the arguments of requests read; nothing is converted. RESP3 is refused, because
//! its pushes would upset the order of replies on which the proxy relies.

use std::io::{Error, ErrorKind, Result};

/// Cuts one direction of a connection into frames: requests or replies.
///
/// It never reads a byte twice: where it stands inside a frame is kept from one chunk to the next.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    // Begin of the frame in progress; what lies before it has been handed out.
    start: usize,
    // End of the elements that are complete.
    scanned: usize,
    // Elements that the frame in progress still lacks; nested arrays just add theirs.
    lacking: u64,
    inline: bool,
}

impl Frames {
    /// For the direction from a client, where a line without a type is an inline command.
    #[must_use]
    pub fn requests() -> Self {
        Self { inline: true, ..Self::default() }
    }

    /// For the direction from a server.
    #[must_use]
    pub fn replies() -> Self {
        Self::default()
    }

    /// Adds bytes as they were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes come.
    ///
    /// # Errors
    /// When the bytes are not RESP2.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>> {
        if self.scanned == self.start {
            self.lacking = 1;
        }
        while self.lacking > 0 {
            let rest = &self.buffer[self.scanned..];
            let Some(line) = rest.iter().position(|byte| *byte == b'\n').map(|end| &rest[..=end]) else { return Ok(None) };
            let mut length = line.len();
            let mut elements = 0;
            match line[0] {
                b'+' | b'-' | b':' => {}
                b'$' => {
                    // A length of -1 is null and has no content.
                    if let Ok(content) = usize::try_from(header(line)?) {
                        length += content + 2;
                    }
                }
                b'*' => elements = u64::try_from(header(line)?).unwrap_or(0),
                _ if self.inline && self.scanned == self.start => {}
                other => return Err(malformed(&format!("unknown type {:?}", char::from(other)))),
            }
            if rest.len() < length {
                return Ok(None);
            }
            self.scanned += length;
            self.lacking = self.lacking - 1 + elements;
        }
        let frame = self.buffer[self.start..self.scanned].to_vec();
        self.start = self.scanned;
        Ok(Some(frame))
    }
}

/// The command and its arguments in a whole request; empty for a request that the server ignores.
///
/// # Errors
/// When the request is not an array of bulk strings nor an inline command.
pub fn arguments(request: &[u8]) -> Result<Vec<Vec<u8>>> {
    if request.first() != Some(&b'*') {
        let words = request.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Ok(words.map(<[u8]>::to_vec).collect());
    }
    let (head, mut rest) = split_line(request)?;
    let mut args = Vec::new();
    for _ in 0..header(head)? {
        let (head, tail) = split_line(rest)?;
        let length = usize::try_from(header(head)?).map_err(|_| malformed("null as an argument"))?;
        let content =
            tail.get(..length).filter(|_| head[0] == b'$').ok_or_else(|| malformed("an argument that is no bulk string"))?;
        args.push(content.to_vec());
        rest = tail.get(length + 2..).ok_or_else(|| malformed("an argument without end"))?;
    }
    Ok(args)
}

fn split_line(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| malformed("a line without end"))?;
    Ok(bytes.split_at(end + 1))
}

// The number in a line such as `$12\r\n`.
fn header(line: &[u8]) -> Result<i64> {
    let digits = line.get(1..).unwrap_or_default().trim_ascii_end();
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or_else(|| malformed("a length that is no number"))
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not RESP2: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(mut frames: Frames, bytes: &[u8], step: usize) -> Vec<String> {
        let mut found = Vec::new();
        for chunk in bytes.chunks(step) {
            frames.push(chunk);
            while let Some(frame) = frames.next_frame().unwrap() {
                found.push(String::from_utf8(frame).unwrap());
            }
        }
        found
    }

    #[test]
    fn frames_are_found_however_the_bytes_arrive() {
        let replies = [
            "+OK\r\n",
            "$-1\r\n",
            "$4\r\na\r\nb\r\n",
            "*0\r\n",
            "*-1\r\n",
            "*3\r\n:1\r\n*2\r\n$0\r\n\r\n*0\r\n-ERR no\r\n",
            ":-7\r\n",
        ];
        let requests = ["*2\r\n$4\r\nECHO\r\n$3\r\n*1\r\r\n", "PING now\r\n", "\r\n", "*1\r\n$4\r\nPING\r\n"];
        for step in 1..60 {
            assert_eq!(cut(Frames::replies(), replies.concat().as_bytes(), step), replies);
            assert_eq!(cut(Frames::requests(), requests.concat().as_bytes(), step), requests);
        }
    }

    #[test]
    fn arguments_are_read_from_arrays_and_from_inline_commands() {
        let text = |request: &str| -> Vec<String> {
            arguments(request.as_bytes()).unwrap().into_iter().map(|arg| String::from_utf8(arg).unwrap()).collect()
        };
        assert_eq!(text("*3\r\n$3\r\nSET\r\n$3\r\n\r\nk\r\n$0\r\n\r\n"), ["SET", "\r\nk", ""]);
        assert_eq!(text("PING now\r\n"), ["PING", "now"]);
        assert!(text("\r\n").is_empty() && text("*0\r\n").is_empty());
        assert!(arguments(b"*1\r\n:1\r\n").is_err());
    }

    #[test]
    fn resp3_is_refused() {
        let mut frames = Frames::replies();
        frames.push(b"%1\r\n+a\r\n+b\r\n");
        assert!(frames.next_frame().is_err());
    }
}
