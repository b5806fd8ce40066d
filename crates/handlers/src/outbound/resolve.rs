//! Which addresses may be connected to: the resolver that the HTTP client asks, and its only way to an address.
//!
//! Checking here, where the connection takes its addresses, leaves no moment between check and use: a name that
//! answers with a public address first and with 127.0.0.1 a second later is refused when it does.
//! A URL that names an address itself is not resolved; it has passed the allow-list, so its entry names that address.
//! Fails with [`Refused`], which the caller finds in the chain of the client's error. Absent: a cache of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A name whose addresses all lie where no allowed service should.
#[derive(Debug)]
pub(crate) struct Refused {
    name: String,
    address: IpAddr,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, address } = self;
        write!(
            f,
            "{name} resolves to {address}, which is not public; to call it, list that address itself in handlers.http.allow"
        )
    }
}

impl std::error::Error for Refused {}

/// Asks the system, and keeps the addresses that pass [`passing`].
pub(crate) struct CheckedResolver;

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The port is the URL's; the client puts it in.
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let addrs: Addrs = Box::new(passing(name.as_str(), found)?.into_iter());
            Ok(addrs)
        })
    }
}

/// The addresses of `name` that may be connected to. `localhost` is on this machine and nowhere else; it arrives here
/// only when an entry of the allow-list says `localhost`.
fn passing(name: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Refused> {
    let first = found.first().map(SocketAddr::ip);
    let local = name.eq_ignore_ascii_case("localhost");
    let passing: Vec<_> = found.into_iter().filter(|a| if local { a.ip().is_loopback() } else { is_public(a.ip()) }).collect();
    match (passing.is_empty(), first) {
        (true, Some(address)) => Err(Refused { name: name.to_owned(), address }),
        _ => Ok(passing),
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = match a {
        // This host, loopback, multicast, reserved and broadcast.
        0 | 127 | 224..=255 => true,
        // Shared by carriers, and by some clouds for their metadata service.
        100 => (64..=127).contains(&b),
        // Protocol assignments, the dead 6to4 relays; benchmarks.
        192 => (b, c) == (0, 0) || (b, c) == (88, 99),
        198 => matches!(b, 18 | 19),
        _ => false,
    };
    !(special || ip.is_private() || ip.is_link_local() || ip.is_documentation())
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    match ip.segments() {
        // NAT64, which networks without IPv4 use to reach all of it: the address behind it counts.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))),
        // Protocol assignments with Teredo, documentation, 6to4: IPv4 in disguise, or nobody.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Only this eighth is given to hosts. Loopback, mapped IPv4, link-local, private and multicast lie outside.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addrs(ips: &[&str]) -> Vec<SocketAddr> {
        ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect()
    }

    #[test]
    fn names_that_point_inside_are_refused() {
        for ip in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
        ] {
            let refused = passing("rebind.example.com", addrs(&[ip])).unwrap_err().to_string();
            let address: IpAddr = ip.parse().unwrap();
            assert!(refused.contains(&address.to_string()) && refused.contains("handlers.http.allow"), "{refused}");
        }
    }

    #[test]
    fn public_addresses_pass_and_the_others_are_left_out() {
        for ip in ["8.8.8.8", "100.63.0.1", "172.32.0.1", "192.0.1.1", "2606:4700::1111", "64:ff9b::808:808"] {
            assert_eq!(passing("a.example.com", addrs(&["127.0.0.1", ip, "fe80::1"])).unwrap(), addrs(&[ip]));
        }
    }

    #[test]
    fn localhost_is_this_machine_only() {
        assert_eq!(passing("localhost", addrs(&["::1", "127.0.0.1"])).unwrap().len(), 2);
        assert!(passing("localhost", addrs(&["10.0.0.1"])).is_err());
        assert!(passing("localhost", addrs(&["8.8.8.8"])).is_err());
        assert!(passing("localhost.", addrs(&["127.0.0.1"])).is_err());
        assert!(passing("a.localhost", addrs(&["127.0.0.1"])).is_err());
        assert!(passing("nowhere.test", vec![]).unwrap().is_empty());
    }
}
