//! From a filter to classic BPF (seccomp(2)).

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::{Argument, Case, Filter, Test};
use crate::error::Error;

/// A compiled filter: `struct sock_filter` after `struct sock_filter`, native endian.
pub type Program = Vec<u8>;

/// First system-call number of the x32 ABI (arch/x86/include/uapi/asm/unistd.h): the same architecture to a filter, with
/// other numbers for the same calls.
const X32_BIT: u32 = 0x4000_0000;

pub(super) fn compile(filter: &Filter) -> Result<Program, Error> {
    let fault = |error: seccompiler::BackendError| Error::Filter(error.to_string());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for refusal in &filter.refused {
        let cases = refusal.cases.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        rules.entry(refusal.call.number).or_default().extend(cases);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(fault)?;
    let refuse = SeccompAction::Errno(filter.errno.1);
    // Calls by another architecture's table end the process.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(fault)?;
    let program = BpfProgram::try_from(filter).map_err(fault)?;
    let mut bytes = refuse_x32();
    for instruction in program {
        bytes.extend(words(instruction.code, instruction.jt, instruction.jf, instruction.k));
    }
    Ok(bytes)
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

/// Three instructions before the rest: a number of the x32 table is answered with ENOSYS, as by a kernel without it.
fn refuse_x32() -> Program {
    // linux/bpf_common.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JGE|BPF_K, BPF_RET|BPF_K.
    const LOAD: u16 = 0x20;
    const JUMP_GE: u16 = 0x35;
    const RETURN: u16 = 0x06;
    // linux/seccomp.h: the number is the first member of seccomp_data; SECCOMP_RET_ERRNO.
    const NUMBER: u32 = 0;
    const RETURN_ERRNO: u32 = 0x0005_0000;
    let missing = RETURN_ERRNO | libc::ENOSYS.cast_unsigned();
    [words(LOAD, 0, 0, NUMBER), words(JUMP_GE, 0, 1, X32_BIT), words(RETURN, 0, 0, missing)].concat()
}

fn words(code: u16, jt: u8, jf: u8, k: u32) -> [u8; 8] {
    let [a, b] = code.to_ne_bytes();
    let [c, d, e, f] = k.to_ne_bytes();
    [a, b, jt, jf, c, d, e, f]
}
