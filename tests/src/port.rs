//! Free ports on 127.0.0.1 that stay free while their server is down.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};

// Below the range from which systems take the ports of outgoing connections (32768 on Linux, 49152 on macOS).
// From inside it, a client that keeps trying to reach a stopped server gets one day that server's own port as its
// local one, connects to itself, and the server cannot come back.
const RANGE: std::ops::Range<u16> = 18_000..32_000;

/// A port that nobody listens on now. Another process may take it before its user does, so try again then.
///
/// # Errors
/// When 200 random ports are all taken.
pub fn free_port() -> Result<u16> {
    for _ in 0..200 {
        let port = fastrand::u16(RANGE);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port in {RANGE:?}")
}
