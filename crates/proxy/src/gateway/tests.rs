use std::net::{TcpListener, UdpSocket};

use super::names::tests::Loopback;
use super::resolver::tests::context;
use super::*;

/// A stage can connect to them without a DNS question first.
#[tokio::test]
async fn opens_granted_addresses_before_serving() {
    let rules = ["a.test", "192.0.2.1:443", "[2001:db8::1]:443"].map(str::to_owned);
    let (cx, record) = context(&rules);
    let listen = Arc::new(Loopback::default());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let sockets = Sockets { udp, tcp, taps: Vec::new() };
    let gateway = Gateway::new(sockets, Arc::clone(&listen) as _, cx).await.unwrap();
    let asked: Vec<String> = listen.asked.lock().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(asked, ["192.0.2.1:443", "[2001:db8::1]:443"]);
    let stop = CancellationToken::new();
    stop.cancel();
    gateway.serve(stop).await;
    std::fs::remove_file(record).unwrap();
}
