//! The data path: gives the same orders in turns to a client that connects directly, one that uses `exeat proxy`, and
//! one inside `exeat run`.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::figures::{Aim, Figure, Report, median};
use crate::under_test::{Client, Took, UnderTest};
use crate::{machine, server};

/// The bytes of one download: about half a second through a tunnel.
const BULK: usize = 512 << 20;
/// The round trips of one ping.
const PINGS: usize = 10_000;
/// The connections of one round.
const CONNECTIONS: usize = 1_000;
/// The number of idle tunnels.
const IDLE: usize = 5_000;

/// Measures streams, round trips, connections and memory.
pub(crate) fn measure(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    let origin = server::start();
    let proxy = under_test.proxy(origin);
    let resting = machine::resident(proxy.pid());

    let mut direct = Lane::new(under_test.direct(origin), None);
    let mut explicit = Lane::new(under_test.through(origin, proxy.address), Some(proxy.pid()));
    let mut handoff = Lane::inside(under_test, origin, "handoff");
    let mut relay = Lane::inside(under_test, origin, "relay");
    for _ in 0..rounds {
        for lane in [&mut direct, &mut explicit, &mut handoff, &mut relay] {
            lane.round();
        }
    }

    for (lane, name) in [(&handoff, "exeat run"), (&explicit, "exeat proxy"), (&relay, "relay")] {
        // Aims apply to the path that people use: `exeat run` with the default bridge.
        let aimed = |aim: Aim| if name == "exeat run" { aim } else { Aim::None };
        let (ours, bare) = (lane.megabytes(), direct.megabytes());
        report.add(Figure {
            name: format!("one stream, {name}"),
            value: format!("{ours:.0} MB/s"),
            base: format!("{bare:.0} MB/s"),
            number: ours / bare,
            aim: aimed(Aim::AtLeast(0.55, "x direct")),
        });
        if name != "relay" {
            // The CPU time of the relay, a process inside, is not visible from here.
            let (ours, bare) = (median(&lane.cpu_per_gb), median(&direct.cpu_per_gb));
            report.add(Figure {
                name: format!("CPU per GB, {name}"),
                value: format!("{ours:.2} s"),
                base: format!("{bare:.2} s"),
                number: ours / bare,
                aim: aimed(Aim::AtMost(2.1, "x direct")),
            });
        }
        let (ours, bare) = (median(&lane.trip), median(&direct.trip));
        report.add(Figure {
            name: format!("64-byte round trip, {name}"),
            value: format!("{ours:.1} us"),
            base: format!("{bare:.1} us"),
            number: ours / bare,
            aim: aimed(Aim::AtMost(2.6, "x direct")),
        });
        if name != "relay" {
            let ours = median(&lane.host_per_connection);
            report.add(Figure {
                name: format!("host CPU per CONNECT, {name}"),
                value: format!("{ours:.3} ms"),
                base: String::new(),
                number: ours,
                aim: aimed(Aim::AtMost(0.13, "ms")),
            });
        }
    }
    drop((handoff, relay, direct));
    memory(&mut explicit.client, proxy.pid(), resting, report);
}

/// Measures a stream and a round trip with every process on any free CPU, as in normal use.
pub(crate) fn measure_free(under_test: &UnderTest, rounds: usize, report: &mut Report) {
    // Threads inherit CPUs from their creator, so a new server is needed.
    let origin = server::start();
    let mut direct = Lane::new(under_test.direct(origin), None);
    let mut handoff = Lane::inside(under_test, origin, "handoff");
    for _ in 0..rounds {
        direct.round();
        handoff.round();
    }
    let (ours, bare) = (handoff.megabytes(), direct.megabytes());
    report.add(Figure {
        name: "one stream, free".into(),
        value: format!("{ours:.0} MB/s"),
        base: format!("{bare:.0} MB/s"),
        number: ours / bare,
        aim: Aim::None,
    });
    let (ours, bare) = (median(&handoff.trip), median(&direct.trip));
    report.add(Figure {
        name: "64-byte round trip, free".into(),
        value: format!("{ours:.1} us"),
        base: format!("{bare:.1} us"),
        number: ours / bare,
        aim: Aim::None,
    });
}

/// Measures the memory of idle tunnels.
fn memory(client: &mut Client, proxy: u32, resting: u64, report: &mut Report) {
    // Client and server are one process each, and need a descriptor per tunnel.
    let tunnels = IDLE.min(usize::try_from(machine::open_files()).unwrap_or(IDLE).saturating_sub(200));
    let before = machine::resident(proxy);
    client.order(&format!("idle {tunnels}"));
    thread::sleep(Duration::from_millis(500));
    let held = machine::resident(proxy).saturating_sub(before);
    client.order("drop");
    let each = held as f64 / tunnels as f64 / 1000.0;
    report.add(Figure {
        name: format!("memory per idle tunnel, at {tunnels}"),
        value: format!("{each:.2} kB"),
        base: String::new(),
        number: each,
        aim: Aim::AtMost(10.0, "kB"),
    });
    let rest = resting as f64 / 1e6;
    report.add(Figure {
        name: "memory at rest, exeat proxy".into(),
        value: format!("{rest:.2} MB"),
        base: String::new(),
        number: rest,
        aim: Aim::AtMost(8.0, "MB"),
    });
}

/// A path to the origin, and its measurements.
struct Lane {
    client: Client,
    /// The exeat process on the host, if there is one.
    host: Option<u32>,
    wall: Vec<f64>,
    cpu_per_gb: Vec<f64>,
    trip: Vec<f64>,
    host_per_connection: Vec<f64>,
}

impl Lane {
    fn new(client: Client, host: Option<u32>) -> Self {
        Self { client, host, wall: vec![], cpu_per_gb: vec![], trip: vec![], host_per_connection: vec![] }
    }

    fn inside(under_test: &UnderTest, origin: SocketAddr, bridge: &str) -> Self {
        let client = under_test.inside(origin, bridge);
        let host = client.pid();
        Self::new(client, Some(host))
    }

    /// Gives every order once.
    fn round(&mut self) {
        let (took, host) = self.order(&format!("bulk {BULK}"));
        self.wall.push(took.wall.as_secs_f64());
        let gigabytes = BULK as f64 / 1e9;
        self.cpu_per_gb.push((took.client + took.server + host).as_secs_f64() / gigabytes);

        let (took, _) = self.order(&format!("ping {PINGS}"));
        self.trip.push(Duration::from_nanos(took.number).as_secs_f64() * 1e6);

        let (_, host) = self.order(&format!("once {CONNECTIONS}"));
        self.host_per_connection.push(host.as_secs_f64() * 1e3 / CONNECTIONS as f64);
    }

    /// Gives one order. Returns its answer, and the CPU time of the exeat process.
    fn order(&mut self, order: &str) -> (Took, Duration) {
        let clock = |pid: Option<u32>| pid.map(machine::cpu_of).unwrap_or_default();
        let before = clock(self.host);
        let took = self.client.order(order);
        (took, clock(self.host) - before)
    }

    fn megabytes(&self) -> f64 {
        let megabytes = BULK as f64 / 1e6;
        megabytes / median(&self.wall)
    }
}
