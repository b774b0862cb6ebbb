//! Real clients: without proxy variables, with those that exeat sets, and toward a host that no rule grants.
//!
//! docs/clients.md has the table of expectations: each trial reads its row there, and fails if the page is wrong.
//! `crates/xtask/tests/house.rs` checks that each row has a trial and each trial a row.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use e2e::bench::{CLIENTS, TOOLCHAIN};
use e2e::case::{Cases, Cx};
use e2e::origin::{POSTGRES, REDIS, SSH};
use e2e::run::{Done, Run};
use e2e::services::{self, CONTENT, LOGIN, program};

pub(crate) fn cases(list: &mut Cases) {
    list.matrix("clients::curl", curl);
    list.users("clients::wget", wget);
    list.users("clients::git_https", git_https);
    list.users("clients::git_ssh", git_ssh);
    list.users("clients::ssh", ssh);
    list.users("clients::pip", pip);
    list.users("clients::uv", uv);
    list.users("clients::aiohttp", aiohttp);
    list.users("clients::npm", npm);
    list.users("clients::pnpm", pnpm);
    list.users("clients::yarn", yarn);
    list.users("clients::node_fetch", node_fetch);
    list.users("clients::node_https", node_https);
    list.users("clients::node_resolve", node_resolve);
    list.users("clients::go", go);
    list.users("clients::go_own_resolver", go_own_resolver);
    list.users("clients::java", java);
    list.users("clients::cargo", cargo);
    list.users("clients::apt", apt);
    list.users("clients::psql", psql);
    list.users("clients::redis_cli", redis_cli);
    if std::env::var_os("E2E_NIGHTLY").is_some() {
        list.users("clients::maven", maven);
        list.users("clients::chromium", chromium);
    }
}

/// The most that a refused run may take longer than a granted one; more would mean that the client waited. An
/// unanswered question takes 5 s.
const AT_ONCE: Duration = Duration::from_secs(2);

/// yarn itself asks five times, with pauses of 3 s, and has no option for it. docs/clients.md says so.
fn most_wait(test: &str) -> Duration {
    if test == "yarn" { Duration::from_secs(20) } else { AT_ONCE }
}

/// Arguments of `env` that unset every proxy variable that exeat sets. A trial checks that the list is complete.
const VARIABLES: &str = "-u HTTPS_PROXY -u https_proxy -u HTTP_PROXY -u http_proxy -u ALL_PROXY -u all_proxy \
                         -u NO_PROXY -u no_proxy -u NODE_USE_ENV_PROXY -u YARN_HTTP_PROXY -u YARN_HTTPS_PROXY \
                         -u JAVA_TOOL_OPTIONS \
                         -u CLOUDSDK_PROXY_TYPE -u CLOUDSDK_PROXY_ADDRESS -u CLOUDSDK_PROXY_PORT";

/// A client of a trial.
struct Client<'a> {
    /// Its row in docs/clients.md, and the name of its trial.
    test: &'static str,
    /// The port in the rule.
    port: u16,
    /// A script for sh; `$H` is the host.
    script: &'a str,
    /// Expected in stdout if the client reached the host.
    shows: &'a str,
    /// An additional directory that the stage must see.
    ro: Option<PathBuf>,
}

impl Client<'_> {
    fn run<'a>(&self, cx: &'a Cx, host: &str, variables: bool) -> Run<'a> {
        let rule = format!("{}:{}", cx.good(), self.port);
        let unset = if variables { "" } else { VARIABLES };
        // The stage checks with `printenv`, so that a new proxy variable of exeat's fails every trial.
        let check = if variables { "" } else { "printenv | grep -i proxy && exit 99\n" };
        let script = format!(
            "exec env {unset} H={host} sh -c '{}'",
            format!("{check}{}", self.script).replace('\'', "'\\''")
        );
        let mut words = vec!["run".to_string(), "--allow".to_string(), rule];
        if let Some(ro) = &self.ro {
            words.extend(["--ro".to_string(), ro.display().to_string()]);
        }
        words.extend(["--", "sh", "-c", &script].map(str::to_string));
        cx.exeat(words)
    }

    /// Checks every cell of the row.
    fn check_row(&self, cx: &Cx) {
        let row = row(self.test);
        for (variables, way) in [(false, &row.nothing_set), (true, &row.variables)] {
            let took = self.reaches(cx, variables, way);
            self.is_refused(cx, variables, took);
        }
    }

    /// Checks that the client gets its answer by the documented path. Returns how long the run took.
    fn reaches(&self, cx: &Cx, variables: bool, way: &str) -> Duration {
        let done = self.run(cx, &cx.good(), variables).run();
        done.exits(0).shows(self.shows);
        let log = done.record();
        let decisions = log.decisions(&cx.good());
        assert!(!decisions.is_empty(), "{done:?}");
        for decision in decisions {
            assert_eq!(decision["verdict"], "allow", "{decision}");
            let via = match decision["via"].as_str() {
                Some("transparent") => "gateway",
                Some("connect" | "http") => "proxy",
                other => panic!("{other:?}"),
            };
            assert!(way.contains(via), "docs/clients.md says `{way}`, and it was the {via}: {decision}");
        }
        done.took
    }

    /// Checks that the client fails at once, and that the record contains the refusal.
    fn is_refused(&self, cx: &Cx, variables: bool, granted: Duration) {
        let done = self.run(cx, &cx.evil(), variables).run();
        assert_ne!(done.code, Some(0), "{done:?}");
        assert_ne!(done.code, Some(99), "{done:?}");
        assert!(
            done.took < granted + most_wait(self.test),
            "it waited, for {granted:?} without a refusal: {done:?}"
        );
        refused(&done, &cx.evil());
    }
}

/// Checks that the only outcome for the host is a refusal, by the gateway or the proxy.
fn refused(done: &Done, host: &str) {
    let log = done.record();
    let lines = [log.decisions(host), log.questions(host)].concat();
    assert!(!lines.is_empty(), "nothing on record about {host}: {done:?}\n{:#?}", log.records());
    for line in lines {
        assert_eq!(line["verdict"], "deny", "{line}");
        assert_eq!(line["reason"], "default", "{line}");
    }
}

/// A row of docs/clients.md.
struct Row {
    nothing_set: String,
    variables: String,
}

fn row(test: &str) -> Row {
    let page = include_str!("../../docs/clients.md");
    let named = format!("`clients::{test}`");
    let line = page.lines().find(|line| line.starts_with('|') && line.contains(&named));
    let line = line.unwrap_or_else(|| panic!("docs/clients.md has no row for {named}"));
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    assert_eq!(cells.len(), 5, "client, nothing set, variables, needs, test: {line}");
    Row { nothing_set: cells[1].to_string(), variables: cells[2].to_string() }
}

/// Tries a client that fetches over HTTPS.
fn web(cx: &Cx, test: &'static str, script: &str, shows: &str) {
    Client { test, port: 443, script, shows, ro: None }.check_row(cx);
}

fn need(cx: &Cx, name: &str) -> PathBuf {
    program(name).unwrap_or_else(|| cx.cannot(&format!("{name} is not installed")))
}

/// Returns an origin's answer to a GET of `/`.
fn hello(cx: &Cx) -> String {
    format!("hello from {}: GET 0", cx.good())
}

fn curl(cx: &Cx) {
    web(cx, "curl", "curl -sS --max-time 20 --cacert ca.pem https://$H/", &hello(cx));
}

fn wget(cx: &Cx) {
    need(cx, "wget");
    let script = "wget -q -O - --tries=1 --timeout=20 --ca-certificate=ca.pem https://$H/";
    web(cx, "wget", script, &hello(cx));
}

fn git_https(cx: &Cx) {
    services::packages(cx.bench());
    let script =
        "git -c http.sslCAInfo=$PWD/ca.pem clone -q https://$H/repo.git /tmp/got && cat /tmp/got/file";
    web(cx, "git_https", script, CONTENT);
}

/// Options that ignore the machine's and the user's files, and ask no questions.
const SSH_OPTIONS: &str = "-F none -i key -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
                           -o LogLevel=ERROR -o ConnectTimeout=20";

fn login(cx: &Cx) {
    need(cx, "ssh");
    need(cx, "sshd");
    let key = cx.write("key", services::ssh(cx.bench()));
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).expect("chmod");
}

fn ssh(cx: &Cx) {
    login(cx);
    let script = format!("ssh {SSH_OPTIONS} {LOGIN}@$H echo over ssh");
    Client { test: "ssh", port: SSH, script: &script, shows: "over ssh\n", ro: None }.check_row(cx);
}

fn git_ssh(cx: &Cx) {
    login(cx);
    let repository = services::packages(cx.bench()).display();
    let script = format!(
        "export GIT_SSH_COMMAND=\"ssh {SSH_OPTIONS}\"
         git clone -q ssh://{LOGIN}@$H{repository} /tmp/got && cat /tmp/got/file"
    );
    Client { test: "git_ssh", port: SSH, script: &script, shows: CONTENT, ro: None }.check_row(cx);
}

fn pip(cx: &Cx) {
    services::packages(cx.bench());
    let script = "/usr/bin/python3 -m pip download -q --no-deps --no-cache-dir --disable-pip-version-check --retries 0 \
                  --timeout 20 --cert ca.pem --index-url https://$H/simple -d /tmp/got tiny && ls /tmp/got";
    web(cx, "pip", script, "tiny-1.0-py3-none-any.whl");
}

/// Returns the directory of the clients that the set-up installed: of `python`, or of `node`.
fn installed_clients(cx: &Cx, kind: &str) -> PathBuf {
    let place = Path::new(CLIENTS).join(kind);
    if !place.is_dir() {
        cx.cannot(&format!("there is no target/clients/{kind}: `cargo xtask setup` makes it"));
    }
    place
}

fn uv(cx: &Cx) {
    services::packages(cx.bench());
    let ro = installed_clients(cx, "python");
    let script = format!(
        "export SSL_CERT_FILE=$PWD/ca.pem UV_HTTP_RETRIES=0
         {}/bin/uv -q pip install --no-cache --no-config --python /usr/bin/python3 --target /tmp/got \
           --default-index https://$H/simple tiny && python3 /tmp/got/tiny.py",
        ro.display()
    );
    Client { test: "uv", port: 443, script: &script, shows: CONTENT, ro: Some(ro) }.check_row(cx);
}

fn aiohttp(cx: &Cx) {
    let ro = installed_clients(cx, "python");
    cx.write(
        "aio.py",
        "import aiohttp, asyncio, os, ssl
async def main():
    trust = ssl.create_default_context(cafile='ca.pem')
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        async with session.get('https://' + os.environ['H'] + '/', ssl=trust) as answer:
            print(await answer.text(), end='')
asyncio.run(main())
",
    );
    let script = format!("PYTHONPATH={} python3 aio.py", ro.display());
    Client { test: "aiohttp", port: 443, script: &script, shows: &hello(cx), ro: Some(ro) }.check_row(cx);
}

fn npm(cx: &Cx) {
    need(cx, "npm");
    services::packages(cx.bench());
    // A `cafile` in the machine's npmrc would make npm ignore NODE_EXTRA_CA_CERTS.
    let script = "export npm_config_cafile=$PWD/ca.pem
        npm pack --loglevel=error --registry https://$H/npm/ --fetch-retries 0 --fetch-timeout 20000 --pack-destination /tmp tiny";
    web(cx, "npm", script, "tiny-1.0.0.tgz");
}

/// Tries an installer of npm packages that the set-up installed. `words` are its words after the name of its program.
fn node_client(cx: &Cx, test: &'static str, words: &str) {
    need(cx, "node");
    services::packages(cx.bench());
    let ro = installed_clients(cx, "node");
    let script = format!(
        "export npm_config_cafile=$PWD/ca.pem npm_config_registry=https://$H/npm/
         mkdir /tmp/app && cd /tmp/app && echo '{{\"name\": \"app\", \"version\": \"1.0.0\"}}' >package.json
         {}/node_modules/.bin/{test} {words} && cat node_modules/tiny/package.json",
        ro.display()
    );
    Client { test, port: 443, script: &script, shows: "\"name\":\"tiny\"", ro: Some(ro) }.check_row(cx);
}

fn pnpm(cx: &Cx) {
    let words =
        "add --silent --store-dir /tmp/store --config.fetch-retries=0 --config.fetch-timeout=20000 tiny";
    node_client(cx, "pnpm", words);
}

fn yarn(cx: &Cx) {
    node_client(
        cx,
        "yarn",
        "add --silent --non-interactive --cache-folder /tmp/cache --network-timeout 20000 tiny",
    );
}

fn node(cx: &Cx, test: &'static str, source: &str) {
    need(cx, "node");
    cx.write("client.mjs", source);
    web(cx, test, "NODE_EXTRA_CA_CERTS=ca.pem node client.mjs", &hello(cx));
}

fn node_fetch(cx: &Cx) {
    node(
        cx,
        "node_fetch",
        "const answer = await fetch(`https://${process.env.H}/`, { signal: AbortSignal.timeout(20000) });
console.log(await answer.text());
",
    );
}

fn node_https(cx: &Cx) {
    node(
        cx,
        "node_https",
        "import https from 'node:https';
https.get(`https://${process.env.H}/`, { timeout: 20000 }, answer => answer.pipe(process.stdout));
",
    );
}

/// The built-in resolver of Node.js (c-ares) reads resolv.conf and sends its own questions. The client then connects to
/// the answer.
fn node_resolve(cx: &Cx) {
    node(
        cx,
        "node_resolve",
        "import dns from 'node:dns/promises';
import https from 'node:https';
const host = process.env.H;
for (const found of [await dns.resolve4(host), await dns.resolve6(host)]) {
  const options = { host: found[0], servername: host, headers: { host }, timeout: 20000, agent: false };
  await new Promise((done, failed) => https.get(options, answer => answer.pipe(process.stdout) && answer.on('end', done)).on('error', failed));
}
",
    );
}

const GO: &str = "package main
import (\"io\"; \"log\"; \"net/http\"; \"os\"; \"time\")
func main() {
  client := http.Client{Timeout: 20 * time.Second}
  answer, err := client.Get(\"https://\" + os.Getenv(\"H\") + \"/\")
  if err != nil { log.Fatal(err) }
  io.Copy(os.Stdout, answer.Body)
}
";

fn go_client(cx: &Cx, test: &'static str, resolver: &str) {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    need(cx, "go");
    let script = "GOCACHE=$PWD/cache go build -o client main.go && rm -rf cache";
    let built = BUILT.get_or_init(|| services::built(cx.bench(), "main.go", GO, script));
    let script = format!("SSL_CERT_FILE=ca.pem GODEBUG=netdns={resolver} {}/client", built.display());
    Client { test, port: 443, script: &script, shows: &hello(cx), ro: Some(built.clone()) }.check_row(cx);
}

fn go(cx: &Cx) {
    go_client(cx, "go", "cgo");
}

/// Uses Go's own resolver, without the C library, like static Go programs.
fn go_own_resolver(cx: &Cx) {
    go_client(cx, "go_own_resolver", "go");
}

const JAVA: &str = "import java.io.FileInputStream;
import java.net.URI;
import java.net.http.*;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import javax.net.ssl.*;
public class Client {
  public static void main(String[] args) throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null);
    store.setCertificateEntry(\"ca\", CertificateFactory.getInstance(\"X.509\").generateCertificate(new FileInputStream(\"ca.pem\")));
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    SSLContext tls = SSLContext.getInstance(\"TLS\");
    tls.init(null, trust.getTrustManagers(), null);
    HttpClient client = HttpClient.newBuilder().sslContext(tls).connectTimeout(Duration.ofSeconds(20)).build();
    HttpRequest get = HttpRequest.newBuilder(URI.create(\"https://\" + System.getenv(\"H\") + \"/\")).build();
    System.out.print(client.send(get, HttpResponse.BodyHandlers.ofString()).body());
  }
}
";

fn java(cx: &Cx) {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    need(cx, "javac");
    let built = BUILT.get_or_init(|| {
        services::built(cx.bench(), "Client.java", JAVA, "javac -J-XX:-UsePerfData -d . Client.java")
    });
    let script = format!("java -XX:TieredStopAtLevel=1 -cp {} Client", built.display());
    Client { test: "java", port: 443, script: &script, shows: &hello(cx), ro: Some(built.clone()) }
        .check_row(cx);
}

fn cargo(cx: &Cx) {
    services::packages(cx.bench());
    if !Path::new(TOOLCHAIN).join("bin/cargo").is_file() {
        cx.cannot("these tests were not started by cargo");
    }
    let manifest = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
                    [dependencies]\ntiny = { version = \"1\", registry = \"local\" }\n[workspace]\n";
    cx.write("Cargo.toml", manifest);
    let script = format!(
        "export CARGO_REGISTRIES_LOCAL_INDEX=sparse+https://$H/index/ CARGO_HTTP_CAINFO=$PWD/ca.pem CARGO_NET_RETRY=0
         export CARGO_HOME=/tmp/cargo RUSTC={TOOLCHAIN}/bin/rustc CARGO_HTTP_TIMEOUT=20
         mkdir -p src && : >src/lib.rs && rm -f Cargo.lock && {TOOLCHAIN}/bin/cargo fetch -q && find /tmp/cargo -name '*.crate'"
    );
    let ro = Some(PathBuf::from(TOOLCHAIN));
    Client { test: "cargo", port: 443, script: &script, shows: "tiny-1.0.0.crate", ro }.check_row(cx);
}

fn apt(cx: &Cx) {
    need(cx, "apt-get");
    services::packages(cx.bench());
    let script = "mkdir -p /tmp/apt/lists/partial /tmp/apt/archives/partial && cd /tmp/apt && : >status && cp $OLDPWD/ca.pem .
        echo \"deb [trusted=yes] https://$H/apt ./\" >sources.list
        cat >apt.conf <<EOF
Dir::State \"/tmp/apt\"; Dir::State::lists \"/tmp/apt/lists\"; Dir::State::status \"/tmp/apt/status\"; Dir::Cache \"/tmp/apt\";
Dir::Etc::sourcelist \"/tmp/apt/sources.list\"; Dir::Etc::sourceparts \"/dev/null\"; Dir::Etc::main \"/dev/null\"; Dir::Etc::parts \"/dev/null\";
APT::Sandbox::User \"\"; Acquire::https::CAInfo \"/tmp/apt/ca.pem\"; Acquire::Retries \"0\"; Acquire::https::Timeout \"20\"; Acquire::Languages \"none\";
APT::Update::Error-Mode \"any\";
EOF
        export APT_CONFIG=/tmp/apt/apt.conf
        apt-get -qq update && apt-get -qq download tiny && ls *.deb";
    web(cx, "apt", script, "tiny_1.0_all.deb");
}

fn psql(cx: &Cx) {
    need(cx, "psql");
    need(cx, "initdb");
    services::postgresql(cx.bench());
    let script = format!(
        "PGCONNECT_TIMEOUT=20 psql \"host=$H port={POSTGRES} user={LOGIN} dbname=postgres\" -Atc \"select 6 * 7\""
    );
    Client { test: "psql", port: POSTGRES, script: &script, shows: "42\n", ro: None }.check_row(cx);
}

fn redis_cli(cx: &Cx) {
    need(cx, "redis-cli");
    services::redis(cx.bench());
    let script = format!("redis-cli -h $H -p {REDIS} echo pong");
    Client { test: "redis_cli", port: REDIS, script: &script, shows: "pong\n", ro: None }.check_row(cx);
}

/// Fetches a parent that only the repository has: Maven needs it before any plugin, so that no plugin is needed.
fn maven(cx: &Cx) {
    need(cx, "mvn");
    services::packages(cx.bench());
    let script = "keytool -importcert -noprompt -storetype PKCS12 -keystore /tmp/trust -storepass changeit -file ca.pem 2>/dev/null
        mkdir /tmp/app && cat >/tmp/app/pom.xml <<EOF
<project><modelVersion>4.0.0</modelVersion>
<parent><groupId>org.example</groupId><artifactId>tiny</artifactId><version>1.0</version><relativePath/></parent>
<artifactId>app</artifactId><packaging>pom</packaging>
<repositories><repository><id>central</id><url>https://$H/maven</url></repository></repositories></project>
EOF
        export MAVEN_OPTS=\"-Djavax.net.ssl.trustStore=/tmp/trust -Djavax.net.ssl.trustStorePassword=changeit\"
        cd /tmp/app && mvn -B -q -Dmaven.repo.local=/tmp/m2 validate && find /tmp/m2 -name 'tiny-1.0.pom'";
    web(cx, "maven", script, "tiny-1.0.pom");
}

/// The browser itself fetches and prints a page. The requests that it makes at its start are refused, and do not count.
fn chromium(cx: &Cx) {
    need(cx, "chromium");
    let script = "chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync \
        --disable-background-networking --disable-component-update --ignore-certificate-errors --user-data-dir=/tmp/chromium \
        --timeout=15000 --dump-dom https://$H/ 2>/dev/null | tee /tmp/page; grep -q hello /tmp/page";
    web(cx, "chromium", script, &hello(cx));
}
