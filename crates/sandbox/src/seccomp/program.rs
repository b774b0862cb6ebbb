//! Compiles filters to classic BPF (seccomp(2)).
//!
//! A program is a prologue of ours, followed by lists that the library compiles from one or more filters. At installation, the kernel
//! translates the program and runs it for every number of two call tables, to learn which calls can skip it (seccomp_cache_prepare,
//! kernel/seccomp.c). Lists are linear; the prologue finds a call's list in ten steps, so only calls that are refused in some cases
//! need a list entry.

use std::collections::{BTreeMap, BTreeSet};

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::{Argument, Call, Case, Filter, Refusal, Test};
use crate::error::Error;

/// A compiled filter: a sequence of `struct sock_filter`, native endian.
pub type Program = Vec<u8>;

/// First system-call number of the x32 ABI (arch/x86/include/uapi/asm/unistd.h): filters see the same architecture with other numbers
/// for the same calls.
const X32_BIT: u32 = 0x4000_0000;

/// Compiles filters to as few programs as possible, since each program slows the process that installs it. Filters without a common
/// call share one. Of two with a common call, the later one goes into a later program: the kernel takes the last program's answer, as
/// with separate programs.
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

/// Returns the calls that a filter has rules for.
fn numbers(filter: &Filter) -> BTreeSet<i64> {
    filter.refused.iter().map(|it| it.call.number).collect()
}

/// Compiles filters without a common call to one program.
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

/// Puts the prologue before the lists, and skips lists without calls.
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

/// Compiles the program that reports these calls. Calls of other architectures get the stricter answers of the other programs.
pub(super) fn notice_filter(told: &[Refusal]) -> Result<Program, Error> {
    // The library has no name for this answer, so one that is unused here stands in for it.
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

/// Compiles the calls that a filter refuses in some cases.
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

/// Compiles a filter's answer to the calls that it always refuses.
fn refusal(filter: &Filter) -> Result<BpfProgram, Error> {
    library(BTreeMap::new(), SeccompAction::Errno(filter.errno.1), SeccompAction::Allow)
}

/// Compiles a list with the library. It checks the architecture first and kills on another one.
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

// linux/bpf_common.h: BPF_LD|BPF_W|BPF_ABS; BPF_JMP with BPF_JA, BPF_JEQ and BPF_JGE; BPF_RET; the last two with BPF_K. The kernel
// evaluates only these in advance (seccomp_is_const_allow, kernel/seccomp.c).
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GE: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Target of a range of numbers: the list that begins so many instructions after the prologue, or `None` to let the calls through.
type List = Option<usize>;

/// Builds the instructions before the lists. `calls` maps each call to the start of its list after the prologue.
///
/// Numbers of the x32 table get ENOSYS, as on a kernel without it. For another architecture, the first list has the answer. A binary
/// search finds a call's list; a call without one is let through.
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
        // Skips the load, the comparisons and the ends.
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

/// Returns the ranges of numbers with the same target: first number and target. The first range begins at 0, and each ends where the
/// next begins.
fn ranges(calls: &BTreeMap<u32, usize>) -> Vec<(u32, List)> {
    let mut ranges: Vec<(u32, List)> = vec![(0, None)];
    for (number, list) in calls {
        for (first, list) in [(*number, Some(*list)), (number + 1, None)] {
            // The call before this one has a list too, or this is call 0.
            ranges.pop_if(|(last, _)| *last == first);
            if ranges.last().is_none_or(|(_, last)| *last != list) {
                ranges.push((first, list));
            }
        }
    }
    ranges
}

/// Adds the comparisons that lead from `ranges` to `ends`, one fewer than there are ranges. The first end is `after` instructions
/// after the last comparison.
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

/// Compares with `k`, and skips `jt` instructions if it holds, else `jf`.
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
