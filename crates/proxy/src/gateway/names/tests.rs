use std::net::TcpListener;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

/// Listens on an ordinary loopback port for each address, as a sandbox would in its own network.
#[derive(Default)]
pub(crate) struct Loopback {
    /// The requested addresses.
    pub(crate) asked: Mutex<Vec<SocketAddr>>,
    /// A port on which listening fails, and the error.
    pub(crate) failing: Mutex<Option<(u16, io::ErrorKind)>>,
    /// While this is set, opening a listener blocks.
    pub(crate) shut: AtomicBool,
    /// Whether the kernel has no IPv6.
    v4_only: AtomicBool,
    /// Number of calls that panic before one succeeds.
    panics: AtomicUsize,
}

impl ListenerFactory for Loopback {
    fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        while self.shut.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.asked.lock().unwrap().push(at);
        if self.panics.load(Ordering::Relaxed) > 0 {
            self.panics.fetch_sub(1, Ordering::Relaxed);
            panic!("as it was told to");
        }
        if at.is_ipv6() && self.v4_only.load(Ordering::Relaxed) {
            return Err(Errno::EAFNOSUPPORT.into());
        }
        match *self.failing.lock().unwrap() {
            Some((port, kind)) if port == at.port() => Err(kind.into()),
            _ => TcpListener::bind("127.0.0.1:0"),
        }
    }
}

struct Setup {
    names: Arc<Names>,
    listen: Arc<Loopback>,
    doors: UnboundedReceiver<Door>,
    room: Arc<Semaphore>,
}

fn setup(most: usize) -> Setup {
    let listen = Arc::new(Loopback::default());
    let (new, doors) = unbounded_channel();
    let names = Arc::new(Names::new(Arc::clone(&listen) as Arc<dyn ListenerFactory>, new, most));
    Setup { names, listen, doors, room: Arc::new(Semaphore::new(100)) }
}

fn ports(ports: &[u16]) -> Vec<Port> {
    ports.iter().map(|port| Port::new(*port).unwrap()).collect()
}

impl Setup {
    async fn open(&self, name: &str, on: &[u16]) -> Result<Pair, Unserved> {
        let room = Arc::clone(&self.room).try_acquire_owned().unwrap();
        self.names.open(&name.parse().unwrap(), ports(on), room).await
    }

    fn targets(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.doors.try_recv().ok()).map(|door| door.target.to_string()).collect()
    }

    fn asked_count(&self) -> usize {
        self.listen.asked.lock().unwrap().len()
    }
}

fn host(name: &str) -> HostName {
    name.parse().unwrap()
}

/// Every name has its own pair, each address leads back to the name, and none looks like a network address.
#[test]
fn gives_each_name_its_own_addresses() {
    let mut seen = HashSet::new();
    for index in 0..limits::NAMES {
        let Pair { v4, v6 } = pair_at(index);
        assert!(!matches!(v4.octets()[3], 0 | 255), "{v4}");
        assert_ne!(v6, V6);
        for ip in [IpAddr::from(v4), v6.into()] {
            assert!(is_synthetic(ip) && seen.insert(ip), "{ip}");
            assert_eq!(index_of(ip), Some(index), "{ip}");
        }
    }
    let last = pair_at(limits::NAMES - 1);
    assert_eq!(last.v4, Ipv4Addr::new(198, 18, 16, 32));
    for none in [
        "198.18.0.0",
        "198.18.0.255",
        "198.18.1.0",
        "198.18.16.33",
        "198.19.0.1",
        "198.17.255.255",
        "127.0.0.1",
    ] {
        assert_eq!(index_of(none.parse().unwrap()), None, "{none}");
    }
    for none in
        ["fd65:7865:6174::", "fd65:7865:6174::1001", "fd65:7865:6174:1::1", "fd65:7865:6173::1", "::1"]
    {
        assert_eq!(index_of(none.parse().unwrap()), None, "{none}");
    }
    for (ip, is) in [
        ("198.19.255.255", true),
        ("198.20.0.0", false),
        ("198.17.255.255", false),
        ("fd65:7865:6174:0:ffff::", true),
        ("fd65:7865:6174:1::", false),
    ] {
        assert_eq!(is_synthetic(ip.parse().unwrap()), is, "{ip}");
    }
}

#[tokio::test]
async fn opens_the_listeners_of_a_name_once() {
    let mut setup = setup(100);
    assert_eq!(setup.names.addresses_of(&host("a.test")), None);
    let first = setup.open("a.test", &[80, 443]).await.unwrap();
    assert_eq!(first, pair_at(0));
    assert_eq!(setup.targets(), ["a.test:80", "a.test:80", "a.test:443", "a.test:443"]);
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    let made = [
        at(first.v4.into(), 80),
        at(first.v6.into(), 80),
        at(first.v4.into(), 443),
        at(first.v6.into(), 443),
    ];
    assert_eq!(*setup.listen.asked.lock().unwrap(), made);
    assert!(made.iter().all(|at| setup.names.listens_at(*at)));
    assert!(!setup.names.listens_at(at(first.v4.into(), 8080)));
    assert!(!setup.names.listens_at(at(pair_at(1).v4.into(), 80)));
    assert_eq!(setup.names.addresses_of(&host("a.test")), Some(first));
    // Another question, also in other letter case, gets the same addresses.
    assert_eq!(setup.open("A.TEST", &[80, 443]).await, Ok(first));
    assert_eq!((setup.targets().len(), setup.asked_count()), (0, 4));
    assert_eq!(setup.open("b.test", &[443]).await, Ok(pair_at(1)));
    for (ip, name) in [(IpAddr::from(first.v6), "a.test"), (pair_at(1).v4.into(), "b.test")] {
        assert_eq!(setup.names.name_at(ip), Some(host(name)));
    }
    assert_eq!(setup.names.name_at(pair_at(2).v4.into()), None);
    assert_eq!(setup.room.available_permits(), 100);
}

/// Simultaneous questions for one name open one set of listeners, and all get the result of the first.
#[tokio::test]
async fn opens_one_set_of_listeners_for_many_questions() {
    let mut setup = setup(100);
    setup.listen.shut.store(true, Ordering::Relaxed);
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (names, room) = (Arc::clone(&setup.names), Arc::clone(&setup.room).try_acquire_owned().unwrap());
        tasks.spawn(async move { names.open(&host("a.test"), ports(&[443]), room).await });
    }
    tokio::task::yield_now().await;
    assert!(timeout(Duration::from_millis(50), tasks.join_next()).await.is_err(), "they wait");
    setup.listen.shut.store(false, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        assert_eq!(ended.unwrap(), Ok(pair_at(0)));
    }
    assert_eq!((setup.targets().len(), setup.asked_count()), (2, 2));
}

/// If the stage uses a port, the error says so. The other listeners are closed, and a later question tries again.
#[tokio::test]
async fn fails_a_name_while_the_stage_uses_its_port() {
    let mut setup = setup(4);
    for (kind, said) in [
        (io::ErrorKind::AddrInUse, "the stage itself listens on port 443, so that the gateway cannot"),
        (io::ErrorKind::PermissionDenied, "the gateway cannot listen on port 443: permission denied"),
    ] {
        *setup.listen.failing.lock().unwrap() = Some((443, kind));
        assert_eq!(setup.open("a.test", &[80, 443]).await.unwrap_err().to_string(), said);
        assert_eq!(setup.targets(), [""; 0]);
        assert!(!setup.names.listens_at(SocketAddr::new(pair_at(0).v4.into(), 80)));
        assert_eq!(setup.names.addresses_of(&host("a.test")), None);
    }
    *setup.listen.failing.lock().unwrap() = None;
    assert_eq!(
        setup.open("a.test", &[80, 443]).await,
        Ok(pair_at(0)),
        "with the address that it had, and all of the room"
    );
    assert_eq!(setup.targets().len(), 4);
}

#[tokio::test]
async fn fails_one_question_on_a_panic() {
    let setup = setup(2);
    setup.listen.panics.store(1, Ordering::Relaxed);
    assert_eq!(setup.open("a.test", &[443]).await, Err(Unserved::Late));
    assert_eq!(setup.open("a.test", &[443]).await, Ok(pair_at(0)));
    assert_eq!(setup.room.available_permits(), 100);
}

/// R01: below a granted wildcard, a stage gets names and listeners up to the limits, and keeps those it has.
#[tokio::test]
async fn r01_bounds_names_and_listeners() {
    let setup = setup(5);
    assert_eq!(setup.open("a.test", &[80, 443]).await, Ok(pair_at(0)));
    assert_eq!(setup.open("b.test", &[443]).await, Err(Unserved::Listeners(5)));
    assert_eq!(setup.names.name_at(pair_at(1).v4.into()), None, "it takes no place");
    assert_eq!(setup.open("a.test", &[80, 443]).await, Ok(pair_at(0)));
    setup.names.open_addresses(vec!["192.0.2.1:443".parse().unwrap()], |_, why| panic!("{why}")).await;
    let (tell, told) = mpsc::channel();
    let tell = move |at, why: &Unserved| tell.send((at, why.clone())).unwrap();
    setup.names.open_addresses(vec!["192.0.2.2:443".parse().unwrap()], tell).await;
    assert_eq!(told.recv().unwrap().1, Unserved::Listeners(5));

    let setup = super::tests::setup(usize::MAX);
    setup.names.table().names = vec![host("x.test"); limits::NAMES];
    assert_eq!(setup.open("a.test", &[443]).await, Err(Unserved::Names));
    assert_eq!(setup.asked_count(), 0);
}

/// A slow listener fails its question at the deadline, and later questions until it is open.
#[tokio::test(start_paused = true)]
async fn fails_slow_listeners_at_the_deadline() {
    let setup = setup(100);
    setup.listen.shut.store(true, Ordering::Relaxed);
    let start = Instant::now();
    // A working thread keeps a paused clock from advancing by itself.
    let advance = async {
        tokio::task::yield_now().await;
        tokio::time::advance(limits::LISTEN).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        answer = setup.open("a.test", &[443]) => assert_eq!(answer, Err(Unserved::Late)),
        () = advance => {}
    }
    assert!(start.elapsed() <= 2 * limits::LISTEN);
    assert_eq!(setup.room.available_permits(), 99, "a thread is still at it");
    setup.listen.shut.store(false, Ordering::Relaxed);
    while setup.room.available_permits() < 100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(setup.open("a.test", &[443]).await, Ok(pair_at(0)));
}

/// Each granted address gets a listener if possible; the others are reported.
#[tokio::test]
async fn opens_listeners_for_granted_addresses() {
    let mut setup = setup(100);
    *setup.listen.failing.lock().unwrap() = Some((25, io::ErrorKind::AddrInUse));
    let addresses =
        ["192.0.2.1:443", "192.0.2.1:25", "[2001:db8::1]:443", "198.18.0.1:443", "[fd65:7865:6174::7]:80"];
    let (tell, told) = mpsc::channel();
    let tell = move |at, why: &Unserved| tell.send(format!("{at}: {why}")).unwrap();
    setup.names.open_addresses(addresses.iter().map(|at| at.parse().unwrap()).collect(), tell).await;
    assert_eq!(setup.targets(), ["192.0.2.1:443", "[2001:db8::1]:443"]);
    assert!(setup.names.listens_at("[2001:db8::1]:443".parse().unwrap()));
    assert!(!setup.names.listens_at("192.0.2.1:25".parse().unwrap()));
    let synthetic = "its address is one of those that the gateway gives to names";
    assert_eq!(
        told.iter().collect::<Vec<_>>(),
        [
            "192.0.2.1:25: the stage itself listens on port 25, so that the gateway cannot".to_owned(),
            format!("198.18.0.1:443: {synthetic}"),
            format!("[fd65:7865:6174::7]:80: {synthetic}"),
        ]
    );
}

/// On a machine without IPv6, a name is served on its IPv4 address.
#[tokio::test]
async fn serves_a_name_without_ipv6() {
    let mut setup = setup(100);
    setup.listen.v4_only.store(true, Ordering::Relaxed);
    let pair = setup.open("a.test", &[80, 443]).await.unwrap();
    assert_eq!(setup.targets(), ["a.test:80", "a.test:443"]);
    let at = |ip: IpAddr| SocketAddr::new(ip, 443);
    assert!(setup.names.listens_at(at(pair.v4.into())) && !setup.names.listens_at(at(pair.v6.into())));
    assert_eq!(setup.names.addresses_of(&host("a.test")), Some(pair));
}
