use super::*;

/// The programs are what the text says: each is run, as the kernel would, on every call with the arguments that its cases name.
#[test]
fn the_programs_do_what_the_rules_say() {
    for debuggable in [false, true] {
        for filter in base_filters(debuggable).iter().chain([&no_unix_sockets_filter()]) {
            let program = compile(filter).unwrap();
            for number in 0..512 {
                for arguments in tries(filter, number) {
                    let expected = match refuses(filter, number, arguments) {
                        true => RETURN_ERRNO | filter.errno.1,
                        false => RETURN_ALLOW,
                    };
                    assert_eq!(run(&program, NATIVE, number, arguments), expected, "{number} {arguments:x?}");
                }
            }
        }
    }
}

#[test]
fn b07_other_tables_are_refused_by_every_program() {
    let mut programs = base(false).unwrap();
    programs.push(no_unix_sockets().unwrap());
    for program in programs {
        assert_eq!(program.len() % 8, 0);
        // BPF_MAXINSNS.
        assert!(program.len() / 8 <= 4096);
        for number in [0, 1, 41] {
            assert_eq!(run(&program, OTHER, number, [0; 6]), RETURN_KILL);
            let enosys = RETURN_ERRNO | libc::ENOSYS.cast_unsigned();
            assert_eq!(run(&program, NATIVE, number | 0x4000_0000, [0; 6]), enosys);
        }
    }
}

/// docs/syscalls.md tells users what is refused. After a change: the text that this prints goes there.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_documentation_has_the_filters() {
    let page = include_str!("../../../../docs/syscalls.md");
    let text = text();
    let shown = page.split_once("```text\n").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    assert!(shown == text, "docs/syscalls.md is not what the filters are:\n{text}");
}

#[test]
fn a_debuggable_stage_has_tracing_besides_and_nothing_else() {
    let of = |debuggable| base_filters(debuggable).iter().map(|it| format!("{it:?}")).collect::<Vec<_>>();
    let [debugged, usual] = [true, false].map(of);
    assert_eq!(debugged[1..], usual[1..]);
    let calls =
        |filters: [Filter; BASE]| filters[0].refused.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>();
    let debugged = calls(base_filters(true));
    let more: Vec<_> = calls(base_filters(false)).into_iter().filter(|it| !debugged.contains(it)).collect();
    let tracing = TRACING.iter().map(|call| format!("{:?}", Refusal { call: *call, cases: Vec::new() }));
    assert_eq!(more, tracing.collect::<Vec<_>>());
}

/// Each of these has to go on working in a sandbox.
#[test]
fn what_programs_need_is_let_through() {
    let programs = base(false).unwrap();
    let stays = |number: i64, arguments: [u32; 6]| {
        let number = u32::try_from(number).unwrap();
        assert!(
            programs.iter().all(|it| run(it, NATIVE, number, arguments) == RETURN_ALLOW),
            "{number} {arguments:x?}"
        );
    };
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).cast_unsigned();
    for family in [libc::AF_INET, libc::AF_INET6].map(i32::cast_unsigned) {
        for (kind, protocol) in [(1, 0), (1, 6), (2, 0), (2, 17), (2, 1), (2, 58)] {
            stays(libc::SYS_socket, [family, kind | flags, protocol, 0, 0, 0]);
        }
    }
    for kind in [1, 2, 5] {
        stays(libc::SYS_socket, [1, kind | flags, 0, 0, 0, 0]);
        stays(libc::SYS_socketpair, [1, kind | flags, 0, 0, 0, 0]);
    }
    stays(libc::SYS_socket, [16, 3 | flags, 0, 0, 0, 0]);
    stays(libc::SYS_seccomp, [1, 0, 0, 0, 0, 0]);
    stays(libc::SYS_clone, [0x3d0f00, 0, 0, 0, 0, 0]);
    stays(libc::SYS_openat, [0, 0, 0o1101, 0o1777, 0, 0]);
    // Who makes no file leaves what was there in the mode's place.
    let read_directory = (libc::O_RDONLY | libc::O_DIRECTORY).cast_unsigned();
    stays(libc::SYS_openat, [0, 0, read_directory, 0o6000, 0, 0]);
    #[cfg(target_arch = "x86_64")]
    stays(libc::SYS_open, [0, read_directory, u32::MAX, 0, 0, 0]);
    stays(libc::SYS_shmget, [0; 6]);
    stays(libc::SYS_memfd_create, [0; 6]);
    stays(libc::SYS_pidfd_open, [0; 6]);
}

const RETURN_ALLOW: u32 = 0x7fff_0000;
const RETURN_ERRNO: u32 = 0x0005_0000;
const RETURN_KILL: u32 = 0x8000_0000;
// linux/audit.h.
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "x86_64")]
const OTHER: u32 = 0x4000_0003;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
#[cfg(target_arch = "aarch64")]
const OTHER: u32 = 0x4000_0028;

fn refuses(filter: &Filter, number: u32, arguments: [u32; 6]) -> bool {
    let of_call = filter.refused.iter().filter(|it| it.call.number == i64::from(number));
    let holds = |(Argument(_, place), test): &(Argument, Test)| {
        let value = arguments[usize::from(*place)];
        match test {
            Test::Is(is) => value == is.1,
            Test::IsNot(is) => value != is.1,
            Test::Has(bits) => value & bits.1 == bits.1,
            Test::Masked(mask, is) => value & mask.1 == is.1,
        }
    };
    of_call.into_iter().any(|it| it.cases.is_empty() || it.cases.iter().any(|case| case.iter().all(holds)))
}

/// Arguments that a call's cases tell apart, each argument with each of the others'.
fn tries(filter: &Filter, number: u32) -> Vec<[u32; 6]> {
    let mut values: [Vec<u32>; 6] = Default::default();
    for refusal in filter.refused.iter().filter(|it| it.call.number == i64::from(number)) {
        for (Argument(_, place), test) in refusal.cases.iter().flatten() {
            let (Test::Is(it) | Test::IsNot(it) | Test::Has(it) | Test::Masked(_, it)) = test;
            values[usize::from(*place)].extend([it.1, it.1 | 0x0008_0000, it.1 ^ 1]);
        }
    }
    let mut all = vec![[0; 6], [u32::MAX; 6]];
    for (place, values) in values.iter().enumerate() {
        let known = all.clone();
        all.extend(known.iter().flat_map(|it| values.iter().map(move |value| (*it, *value))).map(
            |(mut it, value)| {
                it[place] = value;
                it
            },
        ));
    }
    all
}

/// Classic BPF, as much of it as the compiler uses (bpf(4), net/core/filter.c).
fn run(program: &[u8], arch: u32, number: u32, arguments: [u32; 6]) -> u32 {
    let load = |offset: u32| match offset {
        0 => number,
        4 => arch,
        // The low half of an argument, little endian; the high half is noise that must not count.
        16.. if offset.is_multiple_of(8) => arguments[usize::try_from((offset - 16) / 8).unwrap()],
        _ => 0xdead_beef,
    };
    let (mut at, mut a) = (0, 0);
    loop {
        let word: [u8; 8] = program[at * 8..at * 8 + 8].try_into().unwrap();
        let [c0, c1, jt, jf, k0, k1, k2, k3] = word;
        let (code, k) = (u16::from_ne_bytes([c0, c1]), u32::from_ne_bytes([k0, k1, k2, k3]));
        let jump = |is: bool| usize::from(if is { jt } else { jf });
        at += 1;
        match code {
            0x20 => a = load(k),
            0x54 => a &= k,
            0x05 => at += usize::try_from(k).unwrap(),
            0x15 => at += jump(a == k),
            0x25 => at += jump(a > k),
            0x35 => at += jump(a >= k),
            0x45 => at += jump(a & k != 0),
            0x06 => return k,
            _ => panic!("instruction {code:#x}"),
        }
    }
}
