//! Remedies for a host that does not let exeat run. They are only printed, never applied.

use std::fs;
use std::path::Path;

use crate::layer::RefusingLayer;

/// A remedy for a step that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// A command, or a sentence if no command helps.
    pub text: String,
    /// Shell lines with the same effect, made permanent. `None` if `text` is a sentence.
    pub script: Option<String>,
}

impl Fix {
    /// Makes a remedy that no command can apply.
    pub fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), script: None }
    }

    /// Makes a remedy from a command with a permanent effect.
    pub fn command(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { script: Some(text.clone()), text }
    }

    /// Makes a remedy from a command with a permanent effect on one file.
    #[must_use]
    pub fn command_on(command: &str, file: &Path) -> Self {
        Self::command(format!("{command} {}", shell_word(&file.display().to_string())))
    }

    /// Makes a remedy that sets a sysctl. The command lasts until the next boot; the script writes a file per setting, so that two
    /// settings do not overwrite each other.
    fn sysctl(setting: &str, value: u32) -> Self {
        let file = format!("/etc/sysctl.d/60-exeat-{}.conf", setting.replace(['.', '_'], "-"));
        Self {
            text: format!("sudo sysctl -w {setting}={value}"),
            script: Some(format!("echo {setting}={value} | sudo tee {file}\nsudo sysctl -p {file}")),
        }
    }

    /// Makes a remedy that loads an AppArmor profile: it allows this program user namespaces and restricts nothing. No
    /// distribution's own profile has its name, and bubblewrap and exeat have one each.
    fn apparmor(program: &Path) -> Self {
        let name = if program.ends_with("bwrap") { "exeat-bwrap" } else { "exeat-native" };
        let file = format!("/etc/apparmor.d/{name}");
        let program = program.display();
        let lines = [
            "abi <abi/4.0>,".to_owned(),
            "include <tunables/global>".to_owned(),
            format!("profile {name} {program} flags=(unconfined) {{"),
            "  userns,".to_owned(),
            "}".to_owned(),
        ];
        let words = lines.iter().map(|line| format!("\"{line}\"")).collect::<Vec<_>>().join(" ");
        let load = format!("apparmor_parser -r {file}");
        Self {
            text: format!("sudo sh -c 'printf \"%s\\n\" {words} >{file} && {load}'"),
            script: Some(format!("sudo tee {file} <<'END'\n{}\nEND\nsudo {load}", lines.join("\n"))),
        }
    }

    /// Returns this distribution's command to install bubblewrap.
    pub(crate) fn install() -> Self {
        Self::install_on(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// Reads os-release(5): the first name in it with a known package manager decides.
    fn install_on(os_release: &str) -> Self {
        let values = |key: &str| {
            let value = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_default().trim_matches(['"', '\'']).split_whitespace().collect::<Vec<_>>()
        };
        let manager = |name: &&str| match *name {
            "debian" | "ubuntu" => Some("apt-get install"),
            "fedora" | "rhel" | "centos" => Some("dnf install"),
            "arch" => Some("pacman -S"),
            "suse" | "opensuse" => Some("zypper install"),
            "alpine" => Some("apk add"),
            _ => None,
        };
        let names = [values("ID"), values("ID_LIKE")].concat();
        match names.iter().find_map(manager) {
            Some(command) => Self::command(format!("sudo {command} bubblewrap")),
            None => Self::words("install bubblewrap 0.8 or later"),
        }
    }
}

impl RefusingLayer {
    /// Returns the remedy that lifts the restriction from this bubblewrap.
    #[must_use]
    pub fn fix(self, bwrap: &Path) -> Option<Fix> {
        match self {
            Self::AppArmor => Some(Fix::apparmor(bwrap)),
            Self::UsernsCloneSysctl => Some(Fix::sysctl("kernel.unprivileged_userns_clone", 1)),
            Self::MaxUserNamespaces => Some(Fix::sysctl("user.max_user_namespaces", 15000)),
            Self::Container => Some(Fix::words(
                "start the container with a seccomp profile that allows user namespaces (docker: --security-opt seccomp=unconfined)",
            )),
            Self::MaskedProc => Some(Fix::words(
                "start the container with the whole of /proc (docker: --security-opt systempaths=unconfined, podman: --security-opt unmask=ALL)",
            )),
            Self::OldBwrap => Some(Fix::words("install bubblewrap 0.8 or later")),
            Self::Nested => Some(Fix::words(
                "run the command as it is: the run around it decides and records what it reaches; \
                 `--set sandbox.nested=pass` there has exeat do that",
            )),
            Self::Unknown => None,
        }
    }
}

/// Quotes a text as one word of a POSIX shell, so that a printed command can be pasted.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_shell_words_that_need_it() {
        for (text, word) in [
            ("/a/b-c_d.e:1@2%3+4=5,6", "/a/b-c_d.e:1@2%3+4=5,6"),
            ("", "''"),
            ("a b", "'a b'"),
            ("~/x", "'~/x'"),
            ("*.example.com", "'*.example.com'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn each_distribution_has_its_command() {
        for (os_release, text) in [
            ("NAME=\"Debian GNU/Linux\"\nID=debian\n", "sudo apt-get install bubblewrap"),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "sudo apt-get install bubblewrap"),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "sudo dnf install bubblewrap"),
            ("ID_LIKE='suse opensuse'\nID='opensuse-leap'\n", "sudo zypper install bubblewrap"),
            ("ID=arch\n", "sudo pacman -S bubblewrap"),
            ("ID=alpine\n", "sudo apk add bubblewrap"),
        ] {
            assert_eq!(Fix::install_on(os_release), Fix::command(text));
        }
        for os_release in ["", "ID=nixos\n", "MYID=debian\n"] {
            assert_eq!(Fix::install_on(os_release), Fix::words("install bubblewrap 0.8 or later"));
        }
    }

    /// Sentences have no script.
    #[test]
    fn only_commands_are_given_to_a_shell() {
        let all = [
            RefusingLayer::AppArmor,
            RefusingLayer::UsernsCloneSysctl,
            RefusingLayer::MaxUserNamespaces,
            RefusingLayer::Container,
            RefusingLayer::Nested,
            RefusingLayer::MaskedProc,
            RefusingLayer::OldBwrap,
        ];
        let bwrap = Path::new("/usr/local/bin/bwrap");
        for layer in all {
            let fix = layer.fix(bwrap).unwrap();
            assert_eq!(fix.script.is_some(), fix.text.starts_with("sudo "), "{fix:?}");
        }
        let own = RefusingLayer::AppArmor.fix(Path::new("/usr/bin/exeat")).unwrap();
        assert!(
            own.text.contains("profile exeat-native /usr/bin/exeat flags")
                && !own.text.contains("exeat-bwrap")
        );
        let apparmor = RefusingLayer::AppArmor.fix(bwrap).unwrap();
        for text in [Some(&apparmor.text), apparmor.script.as_ref()] {
            assert!(text.unwrap().contains("profile exeat-bwrap /usr/local/bin/bwrap flags"), "{apparmor:?}");
        }
    }

    #[test]
    fn a_file_is_one_word() {
        for (file, text) in [("/srv/a-b_1", "/srv/a-b_1"), ("/srv/a b;'c", r"'/srv/a b;'\''c'")] {
            assert_eq!(Fix::command_on("chmod u+wx", Path::new(file)).text, format!("chmod u+wx {text}"));
        }
    }

    /// Both scripts work together when both settings are in the way.
    #[test]
    fn each_setting_has_a_file_of_its_own() {
        let scripts = [RefusingLayer::UsernsCloneSysctl, RefusingLayer::MaxUserNamespaces]
            .map(|layer| layer.fix(Path::new("/usr/bin/bwrap")).unwrap().script.unwrap());
        let files = scripts.each_ref().map(|script| script.split_whitespace().last().unwrap());
        assert_ne!(files[0], files[1]);
        assert!(files[0].ends_with("/60-exeat-kernel-unprivileged-userns-clone.conf"), "{files:?}");
    }
}
