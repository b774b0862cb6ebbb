//! The gateway beside explicit CONNECT: clients in sandboxes of their own, which ask for the same name. One takes the proxy from
//! its environment; another knows of none, and connects to the address that the sandbox's name server gives it.

use std::time::Duration;

use crate::figures::{Aim, Report};
use crate::under_test::{Client, UnderTest};
use crate::{machine, server};

/// What the origin is called: a name of this machine's, see [`machine::name_loopback`].
pub(crate) const NAME: &str = "origin.bench.test";

/// Bytes of one download, and of several at a time.
const BULK: usize = 512 << 20;
/// Round trips of one ping.
const PINGS: usize = 10_000;
/// Connections of one round.
const CONNECTIONS: usize = 1_000;

/// Measures round trips, streams and connections.
pub(crate) fn measure(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    let origin = server::start();
    let lane = |transparent, proxy| Lane::new(under_test.named(origin, NAME, transparent, proxy));
    let mut gateway = lane("on", false);
    let mut connect = lane("on", true);
    // What the gateway costs whoever does not use it.
    let mut without = lane("off", true);
    let mut lanes = [&mut gateway, &mut connect, &mut without];
    for _ in 0..rounds {
        for step in [Lane::stream, Lane::streams, Lane::trip, Lane::connections, Lane::questions] {
            lanes.iter_mut().for_each(|lane| step(lane));
        }
        // Whoever comes first finds another machine than whoever comes last.
        lanes.rotate_left(1);
    }
    let (most, least) = (Aim::AtMost(1.1, "x CONNECT"), Aim::AtLeast(0.9, "x CONNECT"));
    report.beside("64-byte round trip, gateway", "us", &gateway.trip, &connect.trip, most);
    report.beside("one stream, gateway", "MB/s", &gateway.stream, &connect.stream, least);
    report.beside("4 streams, gateway", "MB/s", &gateway.streams, &connect.streams, least);
    report.beside("host CPU per connection, gateway", "ms", &gateway.each, &connect.each, most);
    report.beside("and a question for its name", "ms", &gateway.asked, &connect.each, Aim::None);
    report.beside("64-byte round trip, CONNECT beside it", "us", &connect.trip, &without.trip, Aim::None);
    report.beside("one stream, CONNECT beside it", "MB/s", &connect.stream, &without.stream, Aim::None);
}

/// One way to the origin, and what was measured on it.
struct Lane {
    client: Client,
    stream: Vec<f64>,
    streams: Vec<f64>,
    trip: Vec<f64>,
    each: Vec<f64>,
    asked: Vec<f64>,
}

impl Lane {
    fn new(client: Client) -> Self {
        Self { client, stream: vec![], streams: vec![], trip: vec![], each: vec![], asked: vec![] }
    }

    fn stream(&mut self) {
        let took = self.client.order(&format!("bulk {BULK}"));
        self.stream.push(BULK as f64 / 1e6 / took.wall.as_secs_f64());
    }

    fn streams(&mut self) {
        let took = self.client.order(&format!("several {BULK}"));
        self.streams.push(BULK as f64 / 1e6 / took.wall.as_secs_f64());
    }

    fn trip(&mut self) {
        let took = self.client.order(&format!("ping {PINGS}"));
        self.trip.push(Duration::from_nanos(took.number).as_secs_f64() * 1e6);
    }

    fn connections(&mut self) {
        let each = self.host_cpu_of_each("once");
        self.each.push(each);
    }

    fn questions(&mut self) {
        let each = self.host_cpu_of_each("ask");
        self.asked.push(each);
    }

    /// Milliseconds of CPU of the exeat process for each connection.
    fn host_cpu_of_each(&mut self, order: &str) -> f64 {
        let host = self.client.pid();
        let before = machine::cpu_of(host);
        self.client.order(&format!("{order} {CONNECTIONS}"));
        (machine::cpu_of(host) - before).as_secs_f64() * 1e3 / CONNECTIONS as f64
    }
}
