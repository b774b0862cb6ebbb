//! From filters to classic BPF (seccomp(2)).
//!
//! A program is a prologue of ours and the lists that the library makes of one filter or more. When a program is installed, the
//! kernel translates it, and walks it once for every number of two tables of calls, to learn which calls it need not be run for
//! (seccomp_cache_prepare, kernel/seccomp.c). A list is gone through from its start. The prologue finds the list of a call in ten
//! steps, so that only calls that are refused in some cases need a place in one.

use std::collections::{BTreeMap, BTreeSet};

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::{Argument, Call, Case, Filter, Refusal, Test};
use crate::error::Error;

/// A compiled filter: `struct sock_filter` after `struct sock_filter`, native endian.
pub type Program = Vec<u8>;

/// First system-call number of the x32 ABI (arch/x86/include/uapi/asm/unistd.h): the same architecture to a filter, with
/// other numbers for the same calls.
const X32_BIT: u32 = 0x4000_0000;

/// Compiles filters to fewer programs, since each costs a process that installs it. Filters that have no call in common share one.
/// Of two with a call in common the later is in a later program: the kernel takes the answer of the last one, as it would if
/// each had its own.
pub(super) fn compile(filters: &[Filter]) -> Result<Vec<Program>, Error> {
    let mut programs: Vec<Vec<&Filter>> = Vec::new();
    for filter in filters {
        let shares =
            |others: &Vec<&Filter>| others.iter().any(|it| !numbers(it).is_disjoint(&numbers(filter)));
        let first = programs.iter().rposition(shares).map_or(0, |last| last + 1);
        match programs.get_mut(first) {
            Some(program) => program.push(filter),
            None => programs.push(vec![filter]),
        }
    }
    programs.iter().map(|filters| joined(filters)).collect()
}

/// The calls that a filter has rules for.
fn numbers(filter: &Filter) -> BTreeSet<i64> {
    filter.refused.iter().map(|it| it.call.number).collect()
}

/// One program for filters of which no two have a call in common.
pub(super) fn joined(filters: &[&Filter]) -> Result<Program, Error> {
    let mut lists = Vec::new();
    for filter in filters {
        let (always, sometimes): (Vec<&Refusal>, Vec<&Refusal>) =
            filter.refused.iter().partition(|it| it.cases.is_empty());
        let some = list(filter, &sometimes)?;
        lists.extend([(sometimes, some), (always, refusal(filter)?)]);
    }
    Ok(bytes(&joined_lists(lists)?))
}

/// The prologue, and the lists of those calls that there are.
fn joined_lists<'a>(
    lists: impl IntoIterator<Item = (Vec<&'a Refusal>, BpfProgram)>,
) -> Result<BpfProgram, Error> {
    let mut calls = BTreeMap::new();
    let mut joined: BpfProgram = Vec::new();
    for (refused, list) in lists {
        for Refusal { call: Call { number, .. }, .. } in &refused {
            let number = u32::try_from(*number).map_err(|_| Error::Filter(format!("no call {number}")))?;
            calls.insert(number, joined.len());
        }
        if !refused.is_empty() {
            joined.extend(list);
        }
    }
    let mut code = prologue(&calls)?;
    code.extend(joined);
    Ok(code)
}

/// The program that tells of these calls. Other architectures' tables are refused by the other programs, whose answers are stricter.
pub(super) fn notice_filter(told: &[Refusal]) -> Result<Program, Error> {
    // The library has no name for the answer: one that nothing else here has stands for it.
    let stands_for_it = SeccompAction::Trap;
    let (always, sometimes): (Vec<&Refusal>, Vec<&Refusal>) = told.iter().partition(|it| it.cases.is_empty());
    let lists = [
        (always, library(BTreeMap::new(), stands_for_it.clone(), SeccompAction::Allow)?),
        (sometimes.clone(), library(rules(&sometimes)?, SeccompAction::Allow, stands_for_it.clone())?),
    ];
    let mut code = joined_lists(lists)?;
    for it in code.iter_mut().filter(|it| it.code == RETURN && it.k == u32::from(stands_for_it.clone())) {
        it.k = libc::SECCOMP_RET_USER_NOTIF;
    }
    Ok(bytes(&code))
}

/// What the library makes of the calls that a filter refuses in some cases.
fn list(filter: &Filter, refused: &[&Refusal]) -> Result<BpfProgram, Error> {
    library(rules(refused)?, SeccompAction::Allow, SeccompAction::Errno(filter.errno.1))
}

fn rules(refused: &[&Refusal]) -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for refusal in refused {
        let cases = refusal.cases.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        rules.entry(refusal.call.number).or_default().extend(cases);
    }
    Ok(rules)
}

/// What it makes of a filter's answer to every call: for those that the filter always refuses.
fn refusal(filter: &Filter) -> Result<BpfProgram, Error> {
    library(BTreeMap::new(), SeccompAction::Errno(filter.errno.1), SeccompAction::Allow)
}

/// A list of the library's. It asks for the architecture first: calls by another one's table end the process.
fn library(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, Error> {
    let fault = |error: seccompiler::BackendError| Error::Filter(error.to_string());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(fault)?;
    let filter = SeccompFilter::new(rules, others, matching, arch).map_err(fault)?;
    BpfProgram::try_from(filter).map_err(fault)
}

fn rule(case: &Case) -> Result<SeccompRule, Error> {
    let conditions = case.iter().map(|(Argument(_, place), test)| {
        let (op, value) = match test {
            Test::Is(value) => (SeccompCmpOp::Eq, value.1),
            Test::IsNot(value) => (SeccompCmpOp::Ne, value.1),
            Test::Has(bits) => (SeccompCmpOp::MaskedEq(bits.1.into()), bits.1),
            Test::Masked(mask, value) => (SeccompCmpOp::MaskedEq(mask.1.into()), value.1),
        };
        SeccompCondition::new(*place, Dword, op, value.into())
    });
    let conditions = conditions.collect::<Result<Vec<_>, _>>();
    conditions.and_then(SeccompRule::new).map_err(|error| Error::Filter(error.to_string()))
}

// linux/bpf_common.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP with BPF_JA, BPF_JEQ and BPF_JGE, BPF_RET, the latter with BPF_K. The kernel
// works out in advance what these come to, and little else (seccomp_is_const_allow, kernel/seccomp.c).
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GE: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Where the prologue leads from a range of numbers: to the list that begins so many instructions after the prologue, or to
/// none, since the calls are let through.
type List = Option<usize>;

/// What comes before the lists. `calls` are those that a list is for, and where it begins behind the prologue.
///
/// A number of the x32 table is answered with ENOSYS, as by a kernel without it. For another architecture the first list has the
/// answer. The list of a call is found by halving the numbers, and a call without one is let through.
fn prologue(calls: &BTreeMap<u32, usize>) -> Result<BpfProgram, Error> {
    // linux/seccomp.h: struct seccomp_data, SECCOMP_RET_ERRNO.
    const NUMBER: u32 = 0;
    const ARCH: u32 = 4;
    const RETURN_ERRNO: u32 = 0x0005_0000;
    // linux/audit.h: AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64.
    #[cfg(target_arch = "x86_64")]
    const NATIVE: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const NATIVE: u32 = 0xc000_00b7;

    let ranges = ranges(calls);
    let ends: Vec<List> = ranges.iter().map(|(_, list)| *list).collect::<BTreeSet<_>>().into_iter().collect();
    let mut code = vec![
        step(LOAD, NUMBER),
        branch(JUMP_GE, X32_BIT, 0, 1),
        step(RETURN, RETURN_ERRNO | libc::ENOSYS.cast_unsigned()),
        step(LOAD, ARCH),
        branch(JUMP_EQUAL, NATIVE, 1, 0),
        // Over the load, the comparisons and the ends.
        step(JUMP, distance(ranges.len() + ends.len())?),
        step(LOAD, NUMBER),
    ];
    halve(&ranges, &ends, 0, &mut code)?;
    for (before, end) in (0..ends.len()).rev().zip(&ends) {
        code.push(match end {
            None => step(RETURN, SeccompAction::Allow.into()),
            Some(list) => step(JUMP, distance(before + list)?),
        });
    }
    Ok(code)
}

/// Each range of numbers that go on to the same place: its first number, and the place. The first begins at 0, and each ends where
/// the next begins.
fn ranges(calls: &BTreeMap<u32, usize>) -> Vec<(u32, List)> {
    let mut ranges: Vec<(u32, List)> = vec![(0, None)];
    for (number, list) in calls {
        for (first, list) in [(*number, Some(*list)), (number + 1, None)] {
            // The call before this one has a list as well, or this is the call 0.
            ranges.pop_if(|(last, _)| *last == first);
            if ranges.last().is_none_or(|(_, last)| *last != list) {
                ranges.push((first, list));
            }
        }
    }
    ranges
}

/// Adds one comparison fewer than there are ranges, which lead to the `ends`: the first of these is `after` instructions behind the
/// last comparison.
fn halve(ranges: &[(u32, List)], ends: &[List], after: usize, code: &mut BpfProgram) -> Result<(), Error> {
    let (low @ [_, ..], high @ [(first, _), ..]) = ranges.split_at(ranges.len() / 2) else {
        return Ok(());
    };
    let (in_low, in_high) = (low.len() - 1, high.len() - 1);
    let too_many = || Error::Filter("too many calls".to_owned());
    let end = |list| ends.iter().position(|end| end == list).map(|end| after + end).ok_or_else(too_many);
    let over = |instructions: usize| u8::try_from(instructions).map_err(|_| too_many());
    let to_low = if let [(_, list)] = low { in_high + end(list)? } else { 0 };
    let to_high = in_low + if let [(_, list)] = high { end(list)? } else { 0 };
    code.push(branch(JUMP_GE, *first, over(to_high)?, over(to_low)?));
    halve(low, ends, after + in_high, code)?;
    halve(high, ends, after, code)
}

fn distance(instructions: usize) -> Result<u32, Error> {
    u32::try_from(instructions).map_err(|_| Error::Filter("too many instructions".to_owned()))
}

fn step(code: u16, k: u32) -> sock_filter {
    branch(code, k, 0, 0)
}

/// A comparison with `k`, and how many instructions are left out when it holds and when not.
fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn bytes(code: &[sock_filter]) -> Program {
    code.iter().flat_map(|it| words(it.code, it.jt, it.jf, it.k)).collect()
}

fn words(code: u16, jt: u8, jf: u8, k: u32) -> [u8; 8] {
    let [a, b] = code.to_ne_bytes();
    let [c, d, e, f] = k.to_ne_bytes();
    [a, b, jt, jf, c, d, e, f]
}
