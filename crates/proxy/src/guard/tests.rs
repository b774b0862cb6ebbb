use exeat_policy::{Action, Day, Note, Origin, Policy, PolicyBuilder, Target};

use super::*;

fn policy(rules: &[&str]) -> Policy {
    let mut builder = PolicyBuilder::new();
    for rule in rules {
        builder.add(rule, Action::Allow, Origin::Flag { flag: "--allow".into() }, Note::default()).unwrap();
    }
    builder.build()
}

fn admitted(policy: &Policy, target: &str) -> Admitted {
    policy.admit(Target::parse(target.as_bytes()).unwrap(), Day::from_unix(0)).unwrap()
}

struct Fixed(Result<Vec<IpAddr>, Failure>, Duration);

impl Resolve for Fixed {
    fn resolve(&self, _: &HostName) -> Result<Vec<IpAddr>, Failure> {
        std::thread::sleep(self.1);
        self.0.clone()
    }
}

fn failed(resolved: Result<Resolved, Unresolved>) -> Failure {
    match resolved {
        Err(Unresolved::Failed(failure)) => failure,
        Err(Unresolved::Denied { denial, .. }) => panic!("{denial}"),
        Ok(_) => panic!("resolved"),
    }
}

async fn guard(answer: Result<Vec<IpAddr>, Failure>, slow: Duration) -> Result<Resolved, Unresolved> {
    let policy = policy(&["a.test"]);
    let by = Instant::now() + Duration::from_millis(100);
    Guard::new(Arc::new(Fixed(answer, slow))).resolve(admitted(&policy, "a.test:443"), by).await
}

/// D13, R08: slow, empty and huge answers are distinct failures, and not denials.
#[tokio::test]
async fn separates_lookup_failures() {
    let many =
        (0..=limits::ANSWERS).map(|n| IpAddr::from([93, 184, 215, u8::try_from(n).unwrap()])).collect();
    assert_eq!(failed(guard(Ok(many), Duration::ZERO).await), Failure::TooManyAnswers);
    assert_eq!(failed(guard(Ok(vec![]), Duration::ZERO).await), Failure::NoSuchName);
    assert_eq!(failed(guard(Err(Failure::Resolver), Duration::ZERO).await), Failure::Resolver);
    let slow = guard(Ok(vec![[93, 184, 215, 14].into()]), Duration::from_millis(400)).await;
    assert_eq!(failed(slow), Failure::ResolverTimeout);
}

/// D01, D03: one refused address refuses the whole answer.
#[tokio::test]
async fn refuses_a_mixed_answer() {
    let answer = vec![[93, 184, 215, 14].into(), [10, 2, 3, 4].into()];
    match guard(Ok(answer.clone()), Duration::ZERO).await {
        Err(Unresolved::Denied { denial, ips, .. }) => {
            assert_eq!(denial.reason(), exeat_policy::Reason::PrivateIp);
            assert_eq!(ips, answer);
        }
        _ => panic!("not denied"),
    }
}

/// D13, R08: stuck lookups keep their slots, and further ones time out instead of adding threads.
#[tokio::test]
async fn bounds_lookups() {
    let policy = policy(&["a.test"]);
    let resolver = Fixed(Ok(vec![[93, 184, 215, 14].into()]), Duration::from_millis(300));
    let guard = Guard::new(Arc::new(resolver));
    let by = Instant::now() + Duration::from_millis(100);
    for _ in 0..limits::LOOKUPS {
        let slot = Arc::clone(&guard.slots).try_acquire_owned().unwrap();
        std::mem::forget(slot);
    }
    assert_eq!(failed(guard.resolve(admitted(&policy, "a.test:443"), by).await), Failure::ResolverTimeout);
}

#[test]
fn reads_the_hosts_file_as_the_c_library_does() {
    let hosts = hosts_file::parse(
        "127.0.0.1 localhost\n::1\tlocalhost ip6-localhost # comment\n# 192.0.2.9 not.test\n\
         192.0.2.1 A.Test b.test\nfe80::1%eth0 scoped.test\nnonsense\n192.0.2.1 a.test\n\n192.0.2.2",
    );
    assert_eq!(hosts["localhost"], ["127.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
    assert_eq!(hosts["a.test"], ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    assert!(
        hosts.contains_key("b.test") && !hosts.contains_key("scoped.test") && !hosts.contains_key("not.test")
    );
}

#[test]
fn reads_a_changed_hosts_file_again() {
    let path = std::env::temp_dir().join(format!("exeat-hosts-{}", std::process::id()));
    let system = System::new(path.clone());
    let name: HostName = "only-here.invalid".parse().unwrap();
    assert!(system.read_hosts().unwrap().is_empty());
    std::fs::write(&path, "192.0.2.7 only-here.invalid\n").unwrap();
    assert_eq!(system.resolve(&name).unwrap(), ["192.0.2.7".parse::<IpAddr>().unwrap()]);
    std::fs::write(&path, "192.0.2.8 only-here.invalid other\n").unwrap();
    assert_eq!(system.resolve(&name).unwrap(), ["192.0.2.8".parse::<IpAddr>().unwrap()]);
    std::fs::remove_file(&path).unwrap();
}

/// D09: a name may not resolve to an address of the host's own interfaces.
#[tokio::test]
async fn caches_own_addresses() {
    let guard = Guard::new(Arc::new(Fixed(Ok(vec![]), Duration::ZERO)));
    let own = guard.own_addresses().unwrap();
    assert!(Arc::ptr_eq(&own, &guard.own_addresses().unwrap()), "read once, within its age");
}
