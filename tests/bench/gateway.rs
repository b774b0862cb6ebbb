//! Compares the gateway with explicit CONNECT. Two clients in two sandboxes ask for the same name: one takes the proxy
//! from its environment; the other knows no proxy, and connects to the address from the sandbox's name server.

use std::time::Duration;

use crate::figures::{Aim, Report};
use crate::under_test::{Client, UnderTest};
use crate::{machine, server};

/// The name of the origin on this machine, see [`machine::name_loopback`].
pub(crate) const NAME: &str = "origin.bench.test";

/// The bytes of one download, and of several parallel ones.
const BULK: usize = 512 << 20;
/// The round trips of one ping.
const PINGS: usize = 10_000;
/// The connections of one round.
const CONNECTIONS: usize = 1_000;

/// Measures round trips, streams and connections.
pub(crate) fn measure(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    let origin = server::start();
    let lane = |transparent, proxy| Lane::new(under_test.client_by_name(origin, NAME, transparent, proxy));
    let mut gateway = lane("on", false);
    let mut connect = lane("on", true);
    // Measures what the gateway costs clients that do not use it.
    let mut without = lane("off", true);
    let mut lanes = [&mut gateway, &mut connect, &mut without];
    for _ in 0..rounds {
        for step in [Lane::stream, Lane::streams, Lane::trip, Lane::connections, Lane::questions] {
            lanes.iter_mut().for_each(|lane| step(lane));
        }
        // The first lane finds another machine than the last.
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

/// A path to the origin, and its measurements.
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

    /// Returns the milliseconds of CPU that the exeat process uses per connection.
    fn host_cpu_of_each(&mut self, order: &str) -> f64 {
        let host = self.client.pid();
        let before = machine::cpu_of(host);
        self.client.order(&format!("{order} {CONNECTIONS}"));
        (machine::cpu_of(host) - before).as_secs_f64() * 1e3 / CONNECTIONS as f64
    }
}
