//! Programs that use more of the kernel than a download, and must work inside.
//!
//! Each is the real program, in the default view, with nothing granted.

use e2e::bench::CLIENTS;
use e2e::case::{Cases, Cx};

pub(crate) fn cases(list: &mut Cases) {
    list.users("smoke::python_multiprocessing", python_multiprocessing);
    list.users("smoke::python_asyncio", python_asyncio);
    list.users("smoke::postgresql", postgresql);
    list.users("smoke::tmux", tmux);
    list.users("smoke::node_workers", node_workers);
    list.users("smoke::java", java);
    list.users("smoke::gcc_and_make", gcc_and_make);
    list.users("smoke::git_in_the_workspace", git);
    list.users("smoke::npm_install", npm_install);
    list.root("smoke::cargo_build", cargo_build);
    list.users("smoke::go_build", go_build);
    list.users("smoke::a_program_with_a_pty", pty);
    list.users("smoke::a_link_to_what_is_not_shown_is_told", staged_link);
}

/// A workflow manager stages the inputs of a task as links.
fn staged_link(cx: &Cx) {
    let data = cx.home().join("data");
    std::fs::write(&data, "rows").expect("written");
    std::os::unix::fs::symlink(&data, cx.dir().join("input")).expect("linked");
    let end = data.to_str().expect("a path");
    let line = format!("does not see where the link `input` leads, `{end}`: --ro {end}");
    cx.run(&[], ["cat", "input"]).run().exits(1).says(&line);
    cx.exeat(["run", "--ro", end, "--", "cat", "input"]).run().exits(0).prints("rows");
    assert!(!cx.run(&[], ["true"]).run().exits(0).stderr().contains("input"));
    // Also on the way to a word of the command, in a tree that is shown.
    std::fs::remove_file(cx.dir().join("input")).expect("removed");
    let (rows, elsewhere) = (cx.dir().join("rows"), cx.home().join("elsewhere"));
    for dir in [&rows, &elsewhere] {
        std::fs::create_dir(dir).expect("a directory");
        cx.bench().give(dir, cx.is_root());
    }
    std::fs::write(elsewhere.join("in.csv"), "rows").expect("written");
    std::os::unix::fs::symlink(&elsewhere, rows.join("sample")).expect("linked");
    let end = elsewhere.display();
    let line = format!("does not see where the link `sample` leads, `{end}`: --ro {end}");
    for word in ["rows/sample/in.csv", "rows/sample"] {
        cx.run(&[], ["cat", word]).run().exits(1).says(&line);
    }
    cx.run(&[], ["grep", "-q", "x", "-r", "rows/"]).run().exits(1).says(&line);
}

/// Python's four start methods work, and so does a manager, which is a server on a Unix socket.
fn python_multiprocessing(cx: &Cx) {
    cx.write(
        "multi.py",
        "import multiprocessing as mp
def double(n): return 2 * n
if __name__ == '__main__':
    for how in ('fork', 'spawn', 'forkserver'):
        with mp.get_context(how).Pool(3) as pool:
            print(how, pool.map(double, [1, 2, 3]))
    with mp.Manager() as manager:
        shared = manager.dict(); shared['a'] = 1
        lock = mp.Lock(); queue = mp.Queue(); queue.put(7)
        with lock: print('manager', dict(shared), queue.get())
",
    );
    let done = cx.run(&[], ["/usr/bin/python3", "multi.py"]).run();
    done.exits(0).prints("fork [2, 4, 6]\nspawn [2, 4, 6]\nforkserver [2, 4, 6]\nmanager {'a': 1} 7\n");
}

/// Child processes, threads, a TCP server and a Unix server.
fn python_asyncio(cx: &Cx) {
    cx.write(
        "aio.py",
        "import asyncio
async def main():
    child = await asyncio.create_subprocess_exec('cat', stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate(b'through a child')
    print(out.decode(), child.returncode)
    print(await asyncio.to_thread(sum, [1, 2, 3]))
    async def echo(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); writer.close()
    for server, connect in (
        (await asyncio.start_server(echo, '127.0.0.1', 8099), lambda: asyncio.open_connection('127.0.0.1', 8099)),
        (await asyncio.start_unix_server(echo, '/tmp/echo.sock'), lambda: asyncio.open_unix_connection('/tmp/echo.sock')),
    ):
        reader, writer = await connect()
        writer.write(b'echoed\\n')
        print((await reader.readline()).decode().strip())
        server.close()
asyncio.run(main())
",
    );
    let done = cx.run(&[], ["/usr/bin/python3", "aio.py"]).run();
    done.exits(0).prints("through a child 0\n6\nechoed\nechoed\n");
}

/// A whole database: shared memory, semaphores, a socket in `/tmp`, and one on loopback.
fn postgresql(cx: &Cx) {
    // Its package starts a server, so the set-up only unpacks it.
    let places = ["/usr/lib/postgresql".to_owned(), format!("{CLIENTS}/system/usr/lib/postgresql")];
    let mut versions = places.iter().flat_map(std::fs::read_dir).flatten().flatten();
    let Some(bin) = versions.next().map(|version| version.path().join("bin")) else {
        cx.cannot("PostgreSQL's programs are in none of these; `cargo xtask setup` unpacks them");
    };
    let script = format!(
        "export PATH={}:$PATH
         initdb -D /tmp/db -U me --auth=trust --no-sync >/tmp/init.log 2>&1 || cat /tmp/init.log
         pg_ctl -D /tmp/db -w -o '-k /tmp -c listen_addresses=127.0.0.1 -c fsync=off' -l /tmp/log start >/dev/null || cat /tmp/log
         psql -h /tmp -U me -d postgres -Atc 'select 6 * 7'
         psql -h 127.0.0.1 -U me -d postgres -Atc 'select count(*) from pg_class where relname = $$pg_class$$'
         pg_ctl -D /tmp/db -w -m fast stop >/dev/null && echo stopped",
        bin.display()
    );
    cx.sh(&[], &script).run().exits(0).prints("42\n1\nstopped\n");
}

fn tmux(cx: &Cx) {
    cx.needs(&["/usr/bin/tmux"]);
    let script = "tmux new-session -d -s a -x 60 -y 10 'sh'
        tmux send-keys -t a 'echo $((6 * 7))-in-tmux' Enter
        for i in $(seq 200); do
          tmux capture-pane -p -t a | grep -q '42-in-tmux' && { echo seen; break; }; sleep 0.1
        done
        tmux kill-server && echo ended";
    cx.sh(&[], script).run().exits(0).prints("seen\nended\n");
}

/// Worker threads, a child with a channel, and a cluster, which passes a listening socket.
fn node_workers(cx: &Cx) {
    cx.write(
        "workers.js",
        "const { Worker } = require('worker_threads');
const { fork } = require('child_process');
const cluster = require('cluster');
const http = require('http');
if (process.argv[2] === 'child') { process.send('from a child'); process.disconnect(); return; }
if (cluster.isWorker) { http.createServer((_, answer) => answer.end('from a cluster')).listen(8098); return; }
const worker = new Promise(done => new Worker('require(\"worker_threads\").parentPort.postMessage(6*7)', { eval: true }).on('message', done));
worker.then(n => { console.log(n); return new Promise(done => fork(__filename, ['child']).on('message', done)); })
  .then(said => { console.log(said); return new Promise(done => cluster.fork().on('listening', done)); })
  .then(() => http.get('http://127.0.0.1:8098', answer => answer.on('data', data => { console.log(String(data)); process.exit(0); })));
",
    );
    cx.run(&[], ["node", "workers.js"]).run().exits(0).prints("42\nfrom a child\nfrom a cluster\n");
}

/// A JVM with threads, a child process and a server.
fn java(cx: &Cx) {
    cx.needs(&["/usr/bin/java"]);
    cx.write(
        "Small.java",
        "import java.net.*; import java.util.stream.*;
public class Small {
  public static void main(String[] args) throws Exception {
    System.out.println(IntStream.rangeClosed(1, 100).parallel().sum());
    Process child = new ProcessBuilder(\"echo\", \"from a child\").inheritIO().start(); child.waitFor();
    try (ServerSocket server = new ServerSocket(8097, 1, InetAddress.getLoopbackAddress());
         Socket client = new Socket(InetAddress.getLoopbackAddress(), 8097)) {
      System.out.println(client.isConnected());
    }
  }
}
",
    );
    let done = cx.run(&[], ["java", "Small.java"]).run();
    done.exits(0).prints("5050\nfrom a child\ntrue\n");
}

fn gcc_and_make(cx: &Cx) {
    cx.needs(&["/usr/bin/make"]);
    cx.write("main.c", "#include <stdio.h>\nint main(void) { puts(\"built\"); return 0; }\n");
    cx.write("Makefile", "all: main.o\n\tcc -o prog main.o\nmain.o: main.c\n\tcc -O2 -c main.c\n");
    cx.sh(&[], "make -s -j2 && ./prog").run().exits(0).prints("built\n");
}

/// Everyday work in a repository, with the hooks and the configuration out of reach.
fn git(cx: &Cx) {
    let init = "git init -q -b main . && git config user.email a@example.com && git config user.name a";
    cx.outside(["sh", "-c", init]).run().exits(0);
    let script = "git status >/dev/null && echo one >a && git add a && git commit -qm one && git branch other && git checkout -q other
        echo two >>a && git stash -q && git stash pop -q && git commit -qam two && git checkout -q main && git merge -q other
        git worktree add -q ../work/tree other && git tag v1 && git gc -q && git log --format=%s && git status --short a
        git config user.name b 2>/dev/null || echo config-refused
        echo x >.git/hooks/pre-commit 2>/dev/null || echo hook-refused";
    cx.sh(&[], script).run().exits(0).prints("two\none\nconfig-refused\nhook-refused\n");
    cx.outside(["git", "log", "--format=%s"]).run().exits(0).prints("two\none\n");
    assert_eq!(cx.outside(["git", "config", "user.name"]).run().stdout(), "a\n");
}

/// A local dependency and a script: no registry is asked.
fn npm_install(cx: &Cx) {
    cx.write("package.json", r#"{"name":"app","version":"1.0.0","dependencies":{"dep":"file:./dep"},"scripts":{"test":"node -p 'require(\"dep\")'"}}"#);
    let made = "mkdir dep && echo '{\"name\":\"dep\",\"version\":\"1.0.0\",\"main\":\"i.js\",\"scripts\":{\"install\":\"echo ran >ran\"}}' >dep/package.json && echo 'module.exports=6*7' >dep/i.js";
    let script = format!(
        "{made}; npm install --no-audit --no-fund --loglevel=error >/dev/null && npm test --silent && npm pack --silent"
    );
    cx.sh(&[], &script).run().exits(0).prints("42\napp-1.0.0.tgz\n");
}

/// Uses the tester's toolchain, wherever it is.
fn cargo_build(cx: &Cx) {
    let Some(cargo) = std::env::var_os("CARGO").map(std::path::PathBuf::from) else {
        cx.cannot("these tests were not started by cargo")
    };
    let bin = cargo.parent().expect("a directory").display();
    cx.write("Cargo.toml", "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\ndep = { path = \"dep\" }\n[workspace]\n");
    let script = "mkdir -p src dep/src && echo 'fn main() { println!(\"{}\", dep::answer()); }' >src/main.rs
        printf '[package]\\nname = \"dep\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n' >dep/Cargo.toml
        echo 'pub fn answer() -> u32 { 6 * 7 }' >dep/src/lib.rs
        cargo build -q --offline && ./target/debug/app && cargo run -q --offline";
    let path = format!("{bin}:{}", e2e::bench::PATH);
    cx.sh(&[], script).env("PATH", &path).run().exits(0).prints("42\n42\n");
}

fn go_build(cx: &Cx) {
    cx.needs(&["/usr/bin/go"]);
    cx.write("main.go", "package main\nimport \"fmt\"\nfunc main() { fmt.Println(6 * 7) }\n");
    cx.write("go.mod", "module app\ngo 1.19\n");
    cx.sh(&[], "go build -o app . && ./app").run().exits(0).prints("42\n");
}

/// The stage makes a pseudo-terminal, as `script`, expect and test runners do.
fn pty(cx: &Cx) {
    cx.write(
        "in_a_pty.py",
        "import os, pty
pid, master = pty.fork()
if pid == 0:
    os.execvp('sh', ['sh', '-c', 'test -t 0 && tty && stty size'])
said = b''
while True:
    try: part = os.read(master, 1024)
    except OSError: break
    if not part: break
    said += part
print(said.decode().split())
",
    );
    cx.run(&[], ["/usr/bin/python3", "in_a_pty.py"]).run().exits(0).prints("['/dev/pts/0', '0', '0']\n");
}
