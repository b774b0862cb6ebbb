//! The examples at the end of each command's help.

pub(super) const EXAMPLES: &str = "\
Examples:
  exeat run --allow api.example.com -- curl -sS https://api.example.com/
  exeat check --allow '*.example.com' a.example.com
  exeat audit show

`exeat help COMMAND` shows the options and examples of a command.";

pub(super) const EXAMPLES_LONG: &str = "\
Examples:
  exeat run --allow api.example.com -- curl -sS https://api.example.com/
  exeat check --allow '*.example.com' a.example.com
  exeat audit show

Rules:
  api.example.com              this host, port 443
  *.example.com                one or more labels below example.com, never example.com itself
  archive.example.org:80,443   these ports; 8000-8099 is a range, * is every port
  10.2.3.4:5432                an address; also 10.20.0.0/16:5432 and [2001:db8::1]:443
  !stats.example.com           in a list of allow rules: deny

Exit codes:
  the stage's own; 128+n when it died of signal n; 126 not executable; 127 not found; 123 something
  was refused (--on-denied fail or end); 124 --timeout reached; 152 limits.cpu_time, 153
  limits.file_size reached; 137 another limit reached, or SIGKILL (--result tells which); 125 exeat
  could not do its part, and nothing ran; 2 bad arguments or policy.
  check: 0 allowed, 1 denied, 2 bad input, 125 could not tell.

Environment:
  RUST_LOG   diagnostics on stderr, such as debug or exeat_proxy=trace
  NO_COLOR   no color

`exeat help COMMAND` shows the options and examples of a command.";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  exeat run --allow api.example.com -- curl -sS https://api.example.com/
  exeat run --allow '*.example.com' --allow 'db.corp.example:5432' -- make test
  exeat run --policy .exeat.toml --timeout 10m -- npm ci
  exeat run --result fd:3 --label job=42 -- ./stage.sh 3>result.json

Exit codes: the stage's own; 128+n when it died of signal n; 126 not executable; 127 not found;
123 something was refused (--on-denied fail or end); 124 --timeout reached; 152 limits.cpu_time,
153 limits.file_size reached; 137 another limit reached, or SIGKILL (--result tells which);
125 exeat could not set the sandbox up; 2 bad arguments or policy.";

pub(super) const LEARN_EXAMPLES: &str = "\
Examples:
  exeat learn -o .exeat.toml -- npm ci
  exeat run --policy .exeat.toml -- npm ci
  exeat learn --allow db.corp.example:5432 --allow 10.20.0.7:5432 -- ./import.sh

Names that no rule allows are let through on ports 80 and 443. Everything else is enforced as in a
run: what that refused is in the policy as comments. Allow more, and learn again.

Exit codes: those of exeat run; 125 also when the policy cannot be written and the stage exited 0.";

pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  exeat check --allow '*.example.com' a.example.com
  exeat check --policy .exeat.toml --resolve api.example.com:8443 10.2.3.4:443
  exeat check --allow @hosts.txt --format json api.example.com | jq -r .reason

Exit codes: 0 every target is allowed, 1 one is denied, 2 bad input, 125 could not tell.";

pub(super) const POLICY_EXAMPLES: &str = "\
Examples:
  exeat policy show .exeat.toml --ceiling site.toml
  exeat policy lint .exeat.toml
  exeat policy diff .exeat.toml.old .exeat.toml
  exeat policy schema > exeat-policy.schema.json

A policy file:
  schema = 1
  [network]
  presets = [\"python\"]                         # see exeat preset
  allow   = [\"api.example.com\", \"*.cdn.example.com\", \"archive.example.org:80,443\"]
  deny    = [\"telemetry.example.com\"]          # always wins
  [[network.rule]]                             # a rule with a note
  allow   = [\"db.corp.example:5432\", \"10.20.0.0/16:5432\"]
  reason  = \"read-only replica\"
  expires = 2027-03-31
  [fs]
  ro = [\"~/datasets:/data\"]
  rw = [\"out\"]                                 # relative to this file
  [env]
  pass = [\"CI\"]
  [limits]
  timeout = \"10m\"
  memory  = \"2GiB\"

What holds in the end is what the stage declares (--effects), and what is granted (--policy,
--preset, --allow), and every ceiling (/etc/exeat/policy.toml, ~/.config/exeat/policy.toml,
--ceiling). Without --effects everything counts as declared; with --effects alone, what is
declared is granted.";

pub(super) const PRESET_EXAMPLES: &str = "\
Examples:
  exeat preset
  exeat preset python
  exeat preset npm --ask
  exeat run -p npm -- npm ci";

pub(super) const ENV_EXAMPLES: &str = "\
Examples:
  exeat env
  exeat env --policy .exeat.toml --env CI --format json";

pub(super) const DOCTOR_EXAMPLES: &str = "\
Exit codes: 0 a command can be run here, 1 it cannot.

Examples:
  exeat doctor
  exeat doctor --fix
  exeat doctor --format json | jq '.steps[] | select(.found != \"held\")'";

pub(super) const PROXY_EXAMPLES: &str = "\
Examples:
  exeat proxy --listen unix:/run/user/1000/exeat.sock --allow api.example.com
  exeat proxy --listen tcp:127.0.0.1:3128 --policy .exeat.toml

It serves until SIGINT or SIGTERM. The policy is read again when one of its files changes, and at
SIGHUP; a faulty one changes nothing. Any local user may use a tcp listener.";

pub(super) const PROVE_EXAMPLES: &str = "\
Examples:
  exeat prove
  exeat prove --bridge relay server-name private-name
  exeat prove --format json | jq -r '.attempts[] | select(.held != true) | .id + \": \" + .why'

Each attempt is made in a run of its own making, and, where that shows something, outside as well.
It takes a few seconds, opens sockets on the loopback of this machine, and asks its name server for
example.com. Nothing of it stays.

Exit codes: 0 everything that could be tried held, 1 something did not, 2 bad input, 125 could not
tell.";

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  exeat completions bash > ~/.local/share/bash-completion/completions/exeat
  exeat completions fish > ~/.config/fish/completions/exeat.fish
  exeat completions zsh > \"${fpath[1]}/_exeat\"";

pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  exeat man run | man -l -
  exeat man --out ~/.local/share/man/man1";
