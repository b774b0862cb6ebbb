//! Recognizes changes of a git configuration that are harmless whoever made them: which branch follows which, and whether a checkout is sparse.

use std::collections::HashSet;

/// Returns whether two configurations differ only in sections that set which remote branch a branch follows, for a remote that both know,
/// or whether a checkout is sparse. `git push -u`, `git checkout -b NAME REMOTE/NAME` and `git sparse-checkout set` write such sections. They
/// make git run no program and contact no other host.
pub(super) fn differ_harmlessly(one: &[u8], other: &[u8]) -> bool {
    let (Ok(one), Ok(other)) = (std::str::from_utf8(one), std::str::from_utf8(other)) else { return false };
    // The other sections are equal byte for byte, and with them the remotes.
    without_harmless(one).is_some_and(|rest| without_harmless(other) == Some(rest))
}

/// Returns the sections that set more than this. Returns `None` if a line continues in the next one: then a header may be part of a
/// value.
fn without_harmless(text: &str) -> Option<Vec<&str>> {
    if text.contains(['\\', '\r', '\0']) || !(text.is_empty() || text.ends_with('\n')) {
        return None;
    }
    let mut starts: Vec<usize> = text.match_indices("\n[").map(|(at, _)| at + 1).collect();
    starts.insert(0, 0);
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let sections = starts.iter().zip(ends).filter_map(|(start, end)| text.get(*start..end));
    // An empty text has no section.
    let sections: Vec<&str> = sections.filter(|section| !section.is_empty()).collect();
    let remotes: HashSet<&str> =
        sections.iter().filter_map(|section| quoted(section.lines().next()?, "remote")).collect();
    Some(
        sections.into_iter().filter(|section| !is_branch(section, &remotes) && !is_sparse(section)).collect(),
    )
}

/// Returns the name in `[KIND "NAME"]`, if none of its characters has a special meaning.
fn quoted<'a>(header: &'a str, kind: &str) -> Option<&'a str> {
    let name = header.strip_prefix('[')?.strip_prefix(kind)?.strip_prefix(" \"")?.strip_suffix("\"]")?;
    is_name(name).then_some(name)
}

fn is_branch(section: &str, remotes: &HashSet<&str>) -> bool {
    let mut lines = section.lines();
    lines.next().is_some_and(|header| quoted(header, "branch").is_some())
        && lines.all(|line| match line.strip_prefix('\t').and_then(|line| line.split_once(" = ")) {
            // Any other value is an address or a path.
            Some(("remote", remote)) => remote == "." || remotes.contains(remote),
            Some(("merge", branch)) => branch.strip_prefix("refs/heads/").is_some_and(is_name),
            Some(("rebase", value)) => ["true", "false"].contains(&value),
            _ => false,
        })
}

fn is_sparse(section: &str) -> bool {
    let mut lines = section.lines();
    let keys: &[&str] = match lines.next() {
        Some("[core]") => &["sparseCheckout", "sparseCheckoutCone"],
        Some("[index]") => &["sparse"],
        _ => return false,
    };
    lines.all(|line| {
        let pair = line.strip_prefix('\t').and_then(|line| line.split_once(" = "));
        pair.is_some_and(|(key, value)| keys.contains(&key) && ["true", "false"].contains(&value))
    })
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/+@".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::differ_harmlessly;

    const OLD: &str = "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = https://git.test/a.git\n";

    fn differs(new: &str) -> bool {
        differ_harmlessly(OLD.as_bytes(), new.as_bytes())
    }

    #[test]
    fn sections_of_branches_may_change() {
        let main = "[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n";
        let other = "[branch \"a/b\"]\n\tremote = .\n\tmerge = refs/heads/main\n\trebase = true\n";
        assert!(differs(OLD));
        assert!(differs(&format!("{OLD}{main}")));
        assert!(differs(&format!("{main}{OLD}{other}")));
        assert!(differ_harmlessly(format!("{OLD}{main}").as_bytes(), OLD.as_bytes()));
        assert!(differ_harmlessly(b"", b"[branch \"x\"]\n\tremote = .\n"));
    }

    /// What `git sparse-checkout` writes to `config.worktree`.
    #[test]
    fn a_checkout_may_become_sparse() {
        let sparse =
            b"[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = true\n[index]\n\tsparse = false\n";
        assert!(differ_harmlessly(b"", sparse) && differ_harmlessly(sparse, b""));
        let other = b"[user]\n\tname = a\n";
        assert!(differ_harmlessly(other, &[&other[..], sparse].concat()));
        for more in [
            "[core]\n\tsparseCheckout = true\n\tfsmonitor = sh x\n",
            "[core]\n\tsparseCheckout = x\n",
            "[core \"x\"]\n\tsparseCheckout = true\n",
            "[index]\n\tsparse = true\n[remote \"origin\"]\n\tpushurl = https://evil.test/\n",
        ] {
            assert!(!differ_harmlessly(b"", more.as_bytes()), "{more:?}");
        }
    }

    #[test]
    fn other_sections_must_not_change() {
        for more in [
            "[core]\n\tfsmonitor = sh x\n",
            "[branch \"x\"]\n\tremote = https://evil.test/\n",
            "[branch \"x\"]\n\tremote = ../evil\n",
            "[branch \"x\"]\n\tremote = ext::sh\n",
            "[branch \"x\"]\n\tremote = other\n",
            "[branch \"x\"]\n\tmerge = refs/heads/a b\n",
            "[branch \"x\"]\n\tmerge = refs/tags/a\n",
            "[branch \"x\"]\n\tpushRemote = origin\n",
            "[branch \"x\"]\n\tremote = origin ; x\n",
            "[branch \"x\"]\n\tremote = origin\n[core]\n\thooksPath = x\n",
            "[branch \"x\"] fsmonitor = x\n",
            "[branch \"x\"]\n\t[core] fsmonitor = x\n",
            "[branch \"x\"]\n [core]\n",
            "[branch \"x\"]\n\tremote = origin\\\n",
            "[branch \"x\"]\n\tremote = origin",
            "[branch \"x\"]\n\n",
            "[branch \"x\"]\r\n\tremote = origin\n",
            "[remote \"up\"]\n\turl = https://git.test/b.git\n",
            "\turl = https://evil.test/\n",
            "\t\u{feff}[branch \"x\"]\n",
        ] {
            assert!(!differs(&format!("{OLD}{more}")), "{more:?}");
        }
        assert!(!differs("[core]\n\tbare = false\n"), "a section is gone");
        let swapped = "[remote \"origin\"]\n\turl = https://git.test/a.git\n[core]\n\tbare = false\n";
        assert!(!differs(swapped), "the last value of a key counts: the order is kept");
        let within = OLD.replace("\tbare", "[branch \"x\"]\n\tremote = origin\n\tbare");
        assert!(!differs(&within), "a key has come to another section");
        assert!(!differ_harmlessly(b"\xff\n", b"\xff\n[branch \"x\"]\n\tremote = .\n"));
    }
}
