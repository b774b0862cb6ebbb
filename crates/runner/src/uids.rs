//! Assigns an unused uid to each run of root.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use exeat_contract::NOBODY;
use exeat_files::permissions::Ids;
use exeat_files::users::{entry, user_of};
use exeat_record::random_number;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::{Gid, Group, Uid};

/// The ids of root.
pub(crate) const ROOT: Ids = (0, 0);
/// The range is above the default range of sssd-ad(5) for directory users (`ldap_idmap_range_min` and `ldap_idmap_range_max`: 200000 to
/// 2000200000), and below systemd's ranges for other machines ("Users, Groups, UIDs and GIDs on systemd systems": 1879048192 to
/// 2147352575 are unused, 2147352576 to 2147418111 foreign). A site may still map its users there, so the user database is asked.
const UNUSED: RangeInclusive<u32> = 2_000_200_001..=2_147_352_575;
/// The range of users for running services (the same document), for a container without the other range.
const PASSING: RangeInclusive<u32> = 61_184..=65_519;
/// The number of tried ids, which is more than the smaller range.
const TRIES: u32 = 5000;
/// The number of questions to the user database, which may be remote.
const QUESTIONS: u32 = 16;

/// A user that no other process has while this is held.
#[derive(Debug)]
pub(crate) struct Own {
    ids: Ids,
    /// A name that only one process can bind, and that the kernel frees with the process (unix(7), "abstract"). Anybody in the network
    /// namespace can bind it: if all tried names are taken, an id is used without one, and two runs may share it.
    hold: Option<OwnedFd>,
}

impl Own {
    /// Takes an id that is in no database. No other run in this network namespace has it, unless all names are taken.
    ///
    /// # Errors
    /// Returns the reason that there is none, as the end of a sentence.
    pub(crate) fn take() -> Result<Self, String> {
        let known = |name: &str| fs::read_to_string(format!("/proc/self/{name}_map")).unwrap_or_default();
        let range = spare(&known("uid"), &known("gid"))
            .ok_or_else(|| "the users of this container have no uid to spare".to_owned())?;
        let start = u32::try_from(random_number() >> u32::BITS).unwrap_or_default();
        Self::from(&range, start, is_somebody)
    }

    /// Takes the first free id, starting within the range.
    fn from(
        range: &RangeInclusive<u32>,
        start: u32,
        is_somebody: impl Fn(u32) -> io::Result<bool>,
    ) -> Result<Self, String> {
        let count = range.end() - range.start() + 1;
        let number = |step| range.start() + (start % count + step) % count;
        let is_free = |id| {
            let asked = is_somebody(id);
            asked
                .map(|is_somebody| !is_somebody)
                .map_err(|error| format!("the user database does not answer for uid {id}: {error}"))
        };
        let mut held = 0;
        for id in (0..count.min(TRIES)).map(number) {
            let hold = hold(id).map_err(|error| format!("no uid can be held for it: {error}"))?;
            if hold.is_none() {
                continue;
            }
            if is_free(id)? {
                return Ok(Self { ids: (id, id), hold });
            }
            held += 1;
            if held == QUESTIONS {
                break;
            }
        }
        if held < QUESTIONS {
            for id in (0..count.min(QUESTIONS)).map(number) {
                if is_free(id)? {
                    return Ok(Self { ids: (id, id), hold: None });
                }
            }
        }
        Err(format!("every uid that was tried from {} to {} is taken", range.start(), range.end()))
    }

    /// Returns whether no other run can have the id at the same time.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Returns the uid and the gid.
    pub(crate) fn ids(&self) -> Ids {
        self.ids
    }
}

/// Returns a range that a user namespace with these maps contains.
fn spare(uids: &str, gids: &str) -> Option<RangeInclusive<u32>> {
    let has_all = |range: &RangeInclusive<u32>| {
        [uids, gids].iter().all(|map| has(map, *range.start()) && has(map, *range.end()))
    };
    [UNUSED, PASSING].into_iter().find(has_all)
}

/// Binds the name of an id, unless another process has it.
fn hold(id: u32) -> nix::Result<Option<OwnedFd>> {
    let name = UnixAddr::new_abstract(format!("exeat-uid-{id}").as_bytes())?;
    // Nobody can connect to the socket because it does not listen.
    let held = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    match bind(held.as_raw_fd(), &name) {
        Ok(()) => Ok(Some(held)),
        Err(Errno::EADDRINUSE) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns whether the user database has a user or a group with this id.
pub(crate) fn is_somebody(id: u32) -> io::Result<bool> {
    if let Some(known) = is_in_files(id, Path::new("/")) {
        return Ok(known);
    }
    Ok(user_of(Uid::from_raw(id))?.is_some() || entry(Group::from_gid(Gid::from_raw(id)))?.is_some())
}

/// Returns a user with the user's own group, because the group of a file may be anybody's. A user without an entry in the database
/// gets the group nobody or, where the user namespace with this map lacks it, the group with the user's number if that is free.
pub(crate) fn with_group(uid: u32, gids: &str) -> Ids {
    if uid == 0 {
        return ROOT;
    }
    if let Some(user) = user_of(Uid::from_raw(uid)).ok().flatten() {
        return (uid, user.gid.as_raw());
    }
    let has_own = || has(gids, uid) && !is_somebody(uid).unwrap_or(true);
    (uid, if !has(gids, NOBODY) && has_own() { uid } else { NOBODY })
}

/// Looks for the id only in the files, if the user database consists of files. The C library would load nss-systemd and ask it twice,
/// which takes longer than all other checks of root's start. Returns `None` if the database must be asked.
fn is_in_files(id: u32, root: &Path) -> Option<bool> {
    /// The sources of nss-systemd(8). Without these it knows only root and nobody.
    const SYSTEMD: [&str; 8] = [
        "run/systemd/system",
        "run/systemd/userdb",
        "etc/userdb",
        "run/userdb",
        "run/host/userdb",
        "usr/local/lib/userdb",
        "usr/lib/userdb",
        "lib/userdb",
    ];
    let read = |name: &str| fs::read_to_string(root.join(name)).ok();
    let switch = read("etc/nsswitch.conf")?;
    let has_only_files = |database: &str| {
        let mut lines = switch.lines().filter_map(|line| line.trim_start().strip_prefix(database));
        let services = lines.next()?.split('#').next()?;
        let is_known = services.split_whitespace().all(|word| word == "files" || word == "systemd");
        (is_known && services.contains("files") && lines.next().is_none()).then_some(())
    };
    has_only_files("passwd:")?;
    has_only_files("group:")?;
    let is_absent = |name: &&str| {
        fs::symlink_metadata(root.join(name)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    SYSTEMD.iter().all(is_absent).then_some(())?;
    // The id is the third field in passwd(5) and group(5). A malformed line makes the answer unknown.
    let mut is_there = false;
    for text in [read("etc/passwd")?, read("etc/group")?] {
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            is_there |= line.split(':').nth(2)?.parse::<u32>().ok()? == id;
        }
    }
    Some(is_there)
}

/// Returns the id ranges of a user namespace with this map, as first and end (user_namespaces(7)).
pub(crate) fn ranges(map: &str) -> impl Iterator<Item = (u64, u64)> {
    map.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let first: u64 = words.next()?.parse().ok()?;
        let count: u64 = words.nth(1)?.parse().ok()?;
        Some((first, first.saturating_add(count)))
    })
}

/// Returns whether a user namespace with this map has an id.
pub(crate) fn has(map: &str, id: u32) -> bool {
    ranges(map).any(|(first, end)| (first..end).contains(&id.into()))
}

/// Returns whether a user namespace with this map has every id, so that none appears as another one.
pub(crate) fn has_all(map: &str) -> bool {
    ranges(map).any(|range| range == (0, u32::MAX.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "         0          0 4294967295\n";

    #[test]
    fn b10_a_run_has_a_uid_that_its_user_namespace_has() {
        let container = "0 100000 65536\n";
        assert_eq!(spare(WHOLE, WHOLE), Some(UNUSED));
        assert_eq!((spare(container, WHOLE), spare(WHOLE, container)), (Some(PASSING), Some(PASSING)));
        assert_eq!((spare("0 0 2000\n", WHOLE), spare("", ""), spare("x y z", WHOLE)), (None, None, None));
        assert!(has_all(WHOLE) && !has_all(container) && !has_all(""));
    }

    #[test]
    fn b10_two_runs_at_one_time_have_different_uids() {
        // The names are unique to this process.
        let first = 3_000_000_000 + std::process::id() * 4;
        let range = first..=first + 2;
        let take = || Own::from(&range, 1, |_| Ok(false));
        let (one, other) = (take().unwrap(), take().unwrap());
        assert_eq!((one.ids(), other.ids()), ((first + 1, first + 1), (first + 2, first + 2)));
        let third = take().unwrap();
        assert!([&one, &other, &third].iter().all(|own| own.is_held()));
        // If all names are taken, a run shares its uid with at most another run.
        let fourth = take().unwrap();
        assert!(!fourth.is_held() && fourth.ids() == one.ids());
        let taken = Own::from(&range, 1, |_| Ok(true));
        assert!(taken.unwrap_err().ends_with(" is taken"));
        drop((one, third));
        assert_eq!(take().unwrap().ids().0, first + 1, "a run that is over gives it back");
    }

    #[test]
    fn b10_a_uid_of_somebody_s_is_not_taken() {
        let first = 4_000_000_000 + std::process::id() % 100_000 * 1000;
        let range = first..=first + 999;
        let taken = Own::from(&range, 0, |id| Ok(id % first < 2));
        assert_eq!(taken.unwrap().ids().0, first + 2);
        let mine = |_| Err(io::Error::from(Errno::EIO));
        assert!(Own::from(&range, 0, mine).unwrap_err().contains("does not answer"));
        let asked = std::cell::Cell::new(0);
        let everybody = |_| {
            asked.set(asked.get() + 1);
            Ok(true)
        };
        assert!(Own::from(&range, 0, everybody).is_err() && asked.get() == QUESTIONS);
        assert!(is_somebody(0).unwrap() && !is_somebody(*UNUSED.start()).unwrap());
    }

    /// B10: the files suffice only if no other source could know a user.
    #[test]
    fn b10_the_user_database_is_asked_unless_files_are_all_that_it_has() {
        let root = std::env::temp_dir().join(format!("uids-{}", std::process::id()));
        fs::create_dir_all(root.join("etc")).unwrap();
        let write = |name: &str, text: &str| fs::write(root.join("etc").join(name), text).unwrap();
        let asked = |id| is_in_files(id, &root);
        assert_eq!(asked(7), None, "without nsswitch.conf the C library has a list of its own");
        write("passwd", "root:x:0:0::/root:/bin/sh\nseven:x:7:0::/:/bin/sh\n");
        write("group", "root:x:0:\neight:x:8:\n");
        let both = "passwd: files systemd # local\ngroup:\tfiles\n";
        write("nsswitch.conf", both);
        assert_eq!([7, 8, 9].map(asked), [Some(true), Some(true), Some(false)]);
        for other in [
            "passwd: files sss\ngroup: files\n",
            "passwd: files\ngroup: files ldap\n",
            "passwd: files [NOTFOUND=return] systemd\ngroup: files\n",
            "passwd: systemd\ngroup: files\n",
            "passwd: files\n",
            "passwd: files\npasswd: sss\ngroup: files\n",
            "passwd: compat\ngroup: compat\n",
        ] {
            write("nsswitch.conf", other);
            assert_eq!(asked(9), None, "{other}");
        }
        write("nsswitch.conf", both);
        write("group", "root:x:0:\n+@everybody\n");
        assert_eq!(asked(9), None, "a line that means something else");
        write("group", "");
        for place in ["run/systemd/userdb", "etc/userdb", "usr/lib/userdb"] {
            fs::create_dir_all(root.join(place)).unwrap();
            assert_eq!(asked(9), None, "{place}");
            fs::remove_dir_all(root.join(place)).unwrap();
        }
        assert_eq!(asked(9), Some(false));
        fs::remove_dir_all(&root).unwrap();
    }
}
