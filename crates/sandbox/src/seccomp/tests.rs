use super::*;

/// Runs the programs, as the kernel does, on every call with the arguments that its cases name.
#[test]
fn programs_follow_the_rules() {
    for debuggable in [false, true] {
        check(&base_filters(debuggable), &base(debuggable).unwrap());
    }
    check(&[no_unix_sockets_filter()], &[no_unix_sockets().unwrap()]);
}

fn check(filters: &[Filter], programs: &[Program]) {
    for number in 0..512 {
        for arguments in filters.iter().flat_map(|it| tries(it, number)) {
            let refusing = filters.iter().rfind(|it| refuses(it, number, arguments));
            let expected = refusing.map_or(RETURN_ALLOW, |it| RETURN_ERRNO | it.errno.1);
            assert_eq!(run_all(programs, number, arguments), expected, "{number} {arguments:x?}");
        }
    }
}

/// Filters share a program only if that changes no answer: of two that refuse one call, the later one counts.
#[test]
fn a_call_of_two_filters_is_in_two_programs() {
    let filter = |errno: u32, numbers: &[i64]| Filter {
        errno: NamedNumber("", errno),
        refused: numbers
            .iter()
            .map(|number| Refusal { call: Call { name: "", number: *number }, cases: Vec::new() })
            .collect(),
    };
    let filters = [filter(1, &[0, 10]), filter(2, &[10, 11]), filter(3, &[11]), filter(4, &[0, 500])];
    let programs = compile(&filters).unwrap();
    assert_eq!(programs.len(), 3);
    check(&filters, &programs);
    assert_eq!(base(false).unwrap().len(), BASE);
}

/// The kernel runs a program for each number at installation: for a call without rules, that ends before the lists.
#[test]
fn the_prologue_lets_through_exactly_the_calls_without_rules() {
    let filters = base_filters(false);
    // Joined as in `base`, by the lists that exist.
    let shared: Vec<&Filter> = [0, 1, 3].map(|at| &filters[at]).into();
    let unix = no_unix_sockets_filter();
    for filters in [shared, vec![&filters[2]], vec![&unix]] {
        let program = joined(&filters).unwrap();
        let has_rules = |number: u32| {
            filters.iter().flat_map(|it| &it.refused).any(|it| it.call.number == i64::from(number))
        };
        // Each list begins with a check of the architecture, as the prologue does after three instructions.
        let lists = (4..program.len() / 8).find(|at| program[at * 8..at * 8 + 8] == LOAD_ARCH).unwrap();
        for number in (0..4096).chain([0x3fff_fffe, 0x3fff_ffff]) {
            let Walk { answer, last, steps } = walk(&program, NATIVE, number, [0; 6]);
            assert_eq!(last >= lists, has_rules(number), "{number}");
            if !has_rules(number) {
                assert_eq!(answer, RETURN_ALLOW, "{number}");
                assert!(steps <= 16, "{number}: {steps} steps");
            }
        }
        for number in [0x4000_0000, 0x4000_0001, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let Walk { answer, last, .. } = walk(&program, NATIVE, number, [0; 6]);
            assert_eq!(
                (answer, last < lists),
                (RETURN_ERRNO | libc::ENOSYS.cast_unsigned(), true),
                "{number}"
            );
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

/// The other programs decide on other tables.
#[test]
fn exeat_is_told_of_these_calls_alone() {
    let program = notice_filter().unwrap();
    let told = libc::SECCOMP_RET_USER_NOTIF;
    let expect = |is_told| if is_told { told } else { RETURN_ALLOW };
    let opens = |number: i64| OPENS.iter().find(|(calls, _)| calls.iter().any(|it| it.number == number));
    for number in 0..512 {
        let answer = |args| run(&program, NATIVE, number, args);
        let is_noticed = NOTICED.iter().any(|call| call.number == i64::from(number));
        assert_eq!(answer([0; 6]), expect(is_noticed), "{number}");
        let Some((_, place)) = opens(number.into()) else {
            assert_eq!(answer([u32::MAX; 6]), expect(is_noticed), "{number}");
            continue;
        };
        for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_ACCMODE] {
            for more in [0, libc::O_CREAT, libc::O_CLOEXEC | libc::O_NOFOLLOW] {
                let mut args = [u32::MAX; 6];
                for cut in [0, libc::O_TRUNC] {
                    args[usize::from(*place)] = (flags | more | cut).cast_unsigned();
                    let cuts_unseen = cut != 0 && [libc::O_RDONLY, libc::O_ACCMODE].contains(&flags);
                    assert_eq!(answer(args), expect(cuts_unseen), "{number} {flags:#o} {more:#o} {cut:#o}");
                }
            }
        }
    }
    let enosys = RETURN_ERRNO | libc::ENOSYS.cast_unsigned();
    assert_eq!(run(&program, NATIVE, 0x4000_0000, [0; 6]), enosys);
    assert!(base(false).unwrap().iter().all(|program| run(program, OTHER, 9, [0; 6]) == RETURN_KILL));
}

/// docs/syscalls.md lists what is refused for users. After a change, copy the text that this test prints there.
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
        |filters: [Filter; 4]| filters[0].refused.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>();
    let debugged = calls(base_filters(true));
    let more: Vec<_> = calls(base_filters(false)).into_iter().filter(|it| !debugged.contains(it)).collect();
    let tracing = TRACING.iter().map(|call| format!("{:?}", Refusal { call: *call, cases: Vec::new() }));
    assert_eq!(more, tracing.collect::<Vec<_>>());
}

/// Programs need each of these in a sandbox.
#[test]
fn allows_system_calls_that_programs_need() {
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
    // A caller that creates no file leaves the mode argument undefined.
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
/// BPF_LD|BPF_W|BPF_ABS of `arch` (linux/seccomp.h).
const LOAD_ARCH: [u8; 8] = [0x20, 0, 0, 0, 4, 0, 0, 0];
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

/// Returns arguments that distinguish a call's cases, in all combinations.
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

/// Runs all programs. The kernel asks the last one first, and keeps the first of equally strict answers (seccomp_run_filters,
/// kernel/seccomp.c).
fn run_all(programs: &[Program], number: u32, arguments: [u32; 6]) -> u32 {
    let answers = programs.iter().rev().map(|it| run(it, NATIVE, number, arguments));
    answers.into_iter().find(|it| *it != RETURN_ALLOW).unwrap_or(RETURN_ALLOW)
}

fn run(program: &[u8], arch: u32, number: u32, arguments: [u32; 6]) -> u32 {
    walk(program, arch, number, arguments).answer
}

/// A pass through a program: its answer, its end and its number of steps.
struct Walk {
    answer: u32,
    last: usize,
    steps: usize,
}

/// Interprets classic BPF as far as the compiler uses it (bpf(4), net/core/filter.c).
fn walk(program: &[u8], arch: u32, number: u32, arguments: [u32; 6]) -> Walk {
    let load = |offset: u32| match offset {
        0 => number,
        4 => arch,
        // The low half of an argument, little endian. The high half is noise that must not count.
        16.. if offset.is_multiple_of(8) => arguments[usize::try_from((offset - 16) / 8).unwrap()],
        _ => 0xdead_beef,
    };
    let (mut at, mut a, mut steps) = (0, 0, 0);
    loop {
        steps += 1;
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
            0x06 => return Walk { answer: k, last: at - 1, steps },
            _ => panic!("instruction {code:#x}"),
        }
    }
}
