//! Defines the question for each client, and the user's files and variables that the client sees.
//!
//! The question is about one tiny package, without retries, prompts, scripts, telemetry or update checks. Everything that the client
//! writes goes to the private `/tmp`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use exeat_policy::preset::Client;

/// The way to ask a client.
pub(super) struct Question {
    /// Names of the program, the preferred one first.
    pub(super) programs: &'static [&'static str],
    /// A script for `/bin/sh`, which starts in an empty directory with the program as `$0`.
    pub(super) script: &'static str,
    /// Variables to set.
    pub(super) set: &'static [(&'static str, &'static str)],
    /// Variables to set to the proxy, because the user's files may set another one.
    pub(super) proxy: &'static [&'static str],
    /// Variables of the caller that name the registry; `*` at the end matches any suffix.
    pub(super) pass: &'static [&'static str],
    /// Variables of the caller that name a settings file, which the client sees.
    pub(super) named: &'static [&'static str],
    /// The user's own settings files.
    pub(super) files: &'static [Setting],
    /// The limit of one round, where retries cannot be turned off.
    pub(super) limit: Option<Duration>,
}

/// A settings file.
#[derive(Clone, Copy)]
pub(super) enum Setting {
    /// Below HOME.
    Home(&'static str),
    /// Below `XDG_CONFIG_HOME` or `.config`; inside always below `.config`.
    Config(&'static str),
    /// Below `CARGO_HOME` or `.cargo`; inside below [`CARGO_HOME`].
    Cargo(&'static str),
}

/// Cargo's directory inside, where it writes.
const CARGO_HOME: &str = "/tmp/cargo";

impl Setting {
    /// Returns the path on the host and the path inside.
    pub(super) fn places(
        self,
        home: &Path,
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> (PathBuf, PathBuf) {
        match self {
            Self::Home(name) => (home.join(name), home.join(name)),
            Self::Config(name) => {
                let own = home.join(".config");
                (variable("XDG_CONFIG_HOME").unwrap_or_else(|| own.clone()).join(name), own.join(name))
            }
            Self::Cargo(name) => {
                let dir = variable("CARGO_HOME").unwrap_or_else(|| home.join(".cargo"));
                (dir.join(name), Path::new(CARGO_HOME).join(name))
            }
        }
    }
}

/// Returns the question for a client; `None` for one that this version does not know.
pub(super) fn question(client: Client) -> Option<&'static Question> {
    Some(match client {
        Client::Apt => &APT,
        Client::Cargo => &CARGO,
        Client::Npm => &NPM,
        Client::Pip => &PIP,
        Client::Pnpm => &PNPM,
        Client::Uv => &UV,
        Client::Yarn => &YARN,
        _ => return None,
    })
}

// Only the release files are asked for: the package lists are large, and are on the same hosts.
const APT: Question = Question {
    programs: &["apt-get"],
    script: r#"mkdir -p lists/partial cache/archives/partial && exec "$0" update -q \
        -o Dir::State=/tmp -o Dir::State::lists=/tmp/lists -o Dir::State::status=/dev/null -o Dir::Cache=/tmp/cache \
        -o APT::Sandbox::User= -o Acquire::Retries=0 -o Acquire::http::Timeout=5 -o Acquire::https::Timeout=5 \
        -o Acquire::http::Proxy="$http_proxy" -o Acquire::https::Proxy="$http_proxy" -o APT::Update::Error-Mode=any \
        -o Acquire::IndexTargets::deb::Packages::DefaultEnabled=false \
        -o Acquire::IndexTargets::deb::Translations::DefaultEnabled=false \
        -o Acquire::IndexTargets::deb-src::Sources::DefaultEnabled=false"#,
    set: &[("DEBIAN_FRONTEND", "noninteractive")],
    proxy: &[],
    pass: &[],
    named: &["APT_CONFIG"],
    files: &[],
    limit: None,
};

const CARGO: Question = Question {
    programs: &["cargo"],
    script: r#"mkdir -p p/src && cd p && : > src/lib.rs && printf '%s\n' '[package]' 'name = "p"' 'version = "0.0.0"' \
        'edition = "2021"' '[dependencies]' 'cfg-if = "1"' > Cargo.toml && exec "$0" fetch --quiet"#,
    set: &[
        ("CARGO_HOME", CARGO_HOME),
        ("CARGO_NET_RETRY", "0"),
        ("CARGO_NET_OFFLINE", "false"),
        ("CARGO_HTTP_TIMEOUT", "5"),
        ("RUSTUP_AUTO_INSTALL", "0"),
    ],
    proxy: &["CARGO_HTTP_PROXY"],
    pass: &["CARGO_REGISTRIES_*", "CARGO_REGISTRY_*", "CARGO_SOURCE_*"],
    named: &[],
    files: &[
        Setting::Cargo("config.toml"),
        Setting::Cargo("config"),
        Setting::Cargo("credentials.toml"),
        Setting::Cargo("credentials"),
    ],
    limit: None,
};

const NPM_PROXY: &[&str] = &["npm_config_https_proxy", "npm_config_proxy"];
const NPM_PASS: &[&str] = &["npm_config_registry", "NPM_CONFIG_REGISTRY"];
const NPM_NAMED: &[&str] =
    &["npm_config_userconfig", "NPM_CONFIG_USERCONFIG", "npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG"];
const NPM_SET: &[(&str, &str)] = &[
    ("CI", "1"),
    ("npm_config_cache", "/tmp/npm"),
    ("npm_config_store_dir", "/tmp/pnpm"),
    ("npm_config_logs_max", "0"),
    ("npm_config_loglevel", "error"),
    ("npm_config_progress", "false"),
    ("npm_config_update_notifier", "false"),
    ("npm_config_audit", "false"),
    ("npm_config_fund", "false"),
    ("npm_config_ignore_scripts", "true"),
    ("npm_config_fetch_retries", "0"),
    ("npm_config_fetch_timeout", "5000"),
    ("pnpm_config_fetch_retries", "0"),
    ("pnpm_config_fetch_timeout", "5000"),
    ("npm_config_noproxy", "localhost"),
    ("XDG_DATA_HOME", "/tmp/data"),
    ("XDG_STATE_HOME", "/tmp/state"),
    ("XDG_CACHE_HOME", "/tmp/cache"),
    ("COREPACK_ENABLE_DOWNLOAD_PROMPT", "0"),
];

const NPM: Question = Question {
    programs: &["npm"],
    script: r#"exec "$0" pack is-number"#,
    set: NPM_SET,
    proxy: NPM_PROXY,
    pass: NPM_PASS,
    named: NPM_NAMED,
    files: &[Setting::Home(".npmrc")],
    limit: None,
};

const PNPM: Question = Question {
    programs: &["pnpm"],
    script: r#"mkdir p && cd p && printf '{}' > package.json && exec "$0" add --ignore-scripts is-number"#,
    set: NPM_SET,
    proxy: NPM_PROXY,
    pass: &["npm_config_registry", "NPM_CONFIG_REGISTRY", "pnpm_config_registry"],
    named: NPM_NAMED,
    files: &[Setting::Home(".npmrc"), Setting::Config("pnpm/rc"), Setting::Config("pnpm/config.yaml")],
    limit: None,
};

const YARN: Question = Question {
    programs: &["yarn", "yarnpkg"],
    script: r#"mkdir p && cd p && printf '{"name":"p","version":"0.0.0"}' > package.json && : > yarn.lock && \
        exec "$0" add is-number"#,
    // No variable is set that only major version 1 knows, because later versions refuse to run with it.
    set: &[
        ("CI", "1"),
        ("YARN_CACHE_FOLDER", "/tmp/yarn"),
        ("YARN_GLOBAL_FOLDER", "/tmp/yarn-global"),
        ("YARN_ENABLE_TELEMETRY", "0"),
        ("YARN_ENABLE_SCRIPTS", "0"),
        ("npm_config_ignore_scripts", "true"),
        ("YARN_HTTP_RETRY", "0"),
        ("YARN_HTTP_TIMEOUT", "5000"),
        ("COREPACK_ENABLE_DOWNLOAD_PROMPT", "0"),
    ],
    proxy: NPM_PROXY,
    pass: &["YARN_REGISTRY", "YARN_NPM_REGISTRY_SERVER", "npm_config_registry", "NPM_CONFIG_REGISTRY"],
    named: NPM_NAMED,
    files: &[Setting::Home(".npmrc"), Setting::Home(".yarnrc"), Setting::Home(".yarnrc.yml")],
    limit: Some(Duration::from_secs(6)),
};

const PIP: Question = Question {
    programs: &["pip", "pip3"],
    script: r#"exec "$0" download --quiet --no-deps --no-cache-dir --no-input --retries 0 --timeout 5 --dest d six"#,
    set: &[("PIP_DISABLE_PIP_VERSION_CHECK", "1"), ("PYTHONDONTWRITEBYTECODE", "1")],
    proxy: &["PIP_PROXY"],
    pass: &["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_TRUSTED_HOST"],
    named: &["PIP_CONFIG_FILE"],
    files: &[Setting::Config("pip/pip.conf"), Setting::Home(".pip/pip.conf")],
    limit: None,
};

const UV: Question = Question {
    programs: &["uv"],
    script: r#"exec "$0" pip install --quiet --no-deps --no-cache --target d six"#,
    set: &[
        ("UV_CACHE_DIR", "/tmp/uv"),
        ("UV_HTTP_RETRIES", "0"),
        ("UV_HTTP_TIMEOUT", "5"),
        ("UV_NO_PROGRESS", "1"),
        ("UV_PYTHON_DOWNLOADS", "never"),
    ],
    proxy: &[],
    pass: &["UV_INDEX", "UV_INDEX_*", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INSECURE_HOST"],
    named: &["UV_CONFIG_FILE"],
    files: &[Setting::Config("uv/uv.toml")],
    limit: None,
};
