//! The measured processes: the `exeat` binary, and clients with or without it.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::machine;

/// The paths of the measurement.
pub(crate) struct UnderTest {
    /// The release binary.
    pub(crate) exeat: PathBuf,
    /// The bench program itself, which also runs as the client.
    pub(crate) this: PathBuf,
    /// The directory of figures, records and caches, inside cargo's target directory.
    pub(crate) directory: PathBuf,
}

impl UnderTest {
    /// Finds the release binary, which `cargo xtask bench` builds in the directory of this program.
    pub(crate) fn find() -> Self {
        let this = env::current_exe().expect("own path");
        let beside = this.parent().expect("a directory");
        let exeat = beside.join("exeat");
        assert!(exeat.is_file(), "{} is missing: run `cargo xtask bench`", exeat.display());
        let directory = beside.parent().expect("a target directory").join("bench");
        for name in ["work", "state", "cache"] {
            fs::create_dir_all(directory.join(name)).expect("a directory for the measurement");
        }
        // The sandbox shows the working directory and not the target directory, so the client is copied there.
        let client = directory.join("work/client");
        let _ = fs::remove_file(&client);
        fs::copy(&this, &client).expect("a copy of the client");
        Self { exeat, this, directory }
    }

    /// Returns an `exeat` command with the measurement's own state and cache.
    pub(crate) fn exeat(&self) -> Command {
        let mut command = Command::new(&self.exeat);
        command
            .current_dir(self.directory.join("work"))
            .env("XDG_STATE_HOME", self.directory.join("state"))
            .env("XDG_CACHE_HOME", self.directory.join("cache"));
        command
    }

    /// Starts a client without exeat.
    pub(crate) fn direct(&self, origin: SocketAddr) -> Client {
        let mut command = Command::new(&self.this);
        command.args(["client".to_owned(), origin.to_string()]);
        Client::start(command)
    }

    /// Starts a client that asks this proxy for its tunnels.
    pub(crate) fn through(&self, origin: SocketAddr, proxy: SocketAddr) -> Client {
        let mut command = Command::new(&self.this);
        command.args(["client".to_owned(), origin.to_string(), proxy.to_string()]);
        Client::start(command)
    }

    /// Starts a client inside a sandbox. Its process is `exeat run` itself.
    pub(crate) fn inside(&self, origin: SocketAddr, bridge: &str) -> Client {
        let mut command = self.run(&["--set", &format!("sandbox.bridge={bridge}")], &[&origin.to_string()]);
        command.args(["client", &origin.to_string(), "env"]);
        Client::start(command)
    }

    /// Starts a client inside a sandbox that asks for the origin by this name, through the proxy or with the gateway.
    pub(crate) fn client_by_name(
        &self,
        origin: SocketAddr,
        name: &str,
        transparent: &str,
        proxy: bool,
    ) -> Client {
        let named = format!("{name}:{}", origin.port());
        // exeat gives the stage a hosts file without the name.
        let transparent = format!("sandbox.transparent={transparent}");
        let options = ["--set", transparent.as_str()];
        // The name leads to a loopback address, which needs a separate rule.
        let mut command = self.run(&options, &[&named, &origin.to_string()]);
        command.args(["client", &named]).args(proxy.then_some("env"));
        Client::start(command)
    }

    /// Returns `exeat run` with the client as its stage, without the client's arguments.
    fn run(&self, options: &[&str], rules: &[&str]) -> Command {
        let mut command = self.exeat();
        command.args(["run", "--quiet", "--set", "limits.connections_per_host=20000"]).args(options);
        command.args(rules.iter().flat_map(|rule| ["--allow", rule])).args(["--", "./client"]);
        command
    }

    /// Starts `exeat proxy` on a free port of loopback.
    pub(crate) fn proxy(&self, origin: SocketAddr) -> Proxy {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its number");
        drop(listener);
        let child = self
            .exeat()
            .args([
                "proxy",
                "--set",
                "limits.connections_per_host=20000",
                "--listen",
                &format!("tcp:{address}"),
                "--allow",
                &origin.to_string(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("exeat proxy");
        let end = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "exeat proxy does not listen on {address}");
            thread::sleep(Duration::from_millis(10));
        }
        Proxy { child, address }
    }
}

/// A proxy. Dropping this ends it.
pub(crate) struct Proxy {
    child: Child,
    /// The address of its listener.
    pub(crate) address: SocketAddr,
}

impl Proxy {
    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client process that takes orders.
pub(crate) struct Client {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// The cost of one order.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    /// The time on the client's clock.
    pub(crate) wall: Duration,
    /// The CPU time of the client.
    pub(crate) client: Duration,
    /// The CPU time of the server, which is this process.
    pub(crate) server: Duration,
    /// The result of the order, if it has one: the median of a ping.
    pub(crate) number: u64,
}

impl Client {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the client");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut client = Self { child, orders, answers };
        // The first answer shows that the whole path works.
        client.order("once 1");
        client
    }

    /// Returns the process id of the client, or of the `exeat run` around it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order and waits for its answer.
    pub(crate) fn order(&mut self, order: &str) -> Took {
        let before = machine::own_cpu();
        writeln!(self.orders.as_mut().expect("a pipe"), "{order}").expect("the client takes orders");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("an answer");
        let server = machine::own_cpu() - before;
        let words: Vec<&str> = answer.split_whitespace().collect();
        let [_, wall, client, number] = words[..] else {
            panic!("`{order}`: the client said `{}`", answer.trim())
        };
        assert!(answer.starts_with("ok "), "`{order}`: the client said `{}`", answer.trim());
        let nanoseconds = |word: &str| Duration::from_nanos(word.parse().expect("a number"));
        Took {
            wall: nanoseconds(wall),
            client: nanoseconds(client),
            server,
            number: number.parse().expect("a number"),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The end of its orders ends the client, and then the sandbox.
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}
