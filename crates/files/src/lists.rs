//! Lists the parts of a view: system trees, toolchains, credentials, caches, variables. Protected names are in
//! [`crate::protected`].
//!
//! A test compares these lists with docs/files.md.

/// System trees: shown read-only in the project view, and never writable as a working directory.
pub const SYSTEM: &[&str] =
    // Not all of /nix: the daemon's socket is in it.
    &[
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/etc",
        "/opt",
        "/nix/store",
        "/nix/var/nix/profiles",
        "/gnu/store",
    ];

/// Places of the kernel or the machine, which are never shown from the host, whatever the working directory is.
pub const KERNEL: &[&str] = &["/proc", "/sys", "/dev"];

/// The directories to show for a directory on PATH. The key is the first component below HOME, or the first two below `.local/share`.
pub const TOOLCHAINS: &[(&str, &[&str])] = &[
    (".cargo/bin", &[".cargo/bin", ".rustup"]),
    (".local/bin", &[".local/bin", ".local/share/uv", ".local/share/pipx", ".local/pipx"]),
    (".pyenv", &[".pyenv"]),
    (".rbenv", &[".rbenv"]),
    (".nodenv", &[".nodenv"]),
    (".goenv", &[".goenv"]),
    (".jenv", &[".jenv"]),
    (".nvm", &[".nvm"]),
    (".volta", &[".volta"]),
    (".asdf", &[".asdf"]),
    (".bun", &[".bun/bin"]),
    (".deno", &[".deno/bin"]),
    (".sdkman", &[".sdkman/candidates"]),
    (".local/share/mise", &[".local/share/mise"]),
    (".local/share/fnm", &[".local/share/fnm"]),
    (".local/share/pnpm", &[".local/share/pnpm"]),
];

/// Variables that name the place of a toolchain, which is shown read-only.
pub const TOOLCHAIN_VARIABLES: &[&str] = &[
    "RUSTUP_HOME",
    "PYENV_ROOT",
    "NVM_DIR",
    "VOLTA_HOME",
    "JAVA_HOME",
    "GOROOT",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];

/// Variables that name a directory of HOME where programs look for executables. They are set if HOME is private and PATH leads there.
pub const HOME_VARIABLES: &[(&str, &str)] = &[
    ("PYENV_ROOT", ".pyenv"),
    ("RBENV_ROOT", ".rbenv"),
    ("NODENV_ROOT", ".nodenv"),
    ("GOENV_ROOT", ".goenv"),
    ("NVM_DIR", ".nvm"),
    ("VOLTA_HOME", ".volta"),
    ("ASDF_DATA_DIR", ".asdf"),
    ("MISE_DATA_DIR", ".local/share/mise"),
];

/// Directories below a home directory that exeat writes to, or reads settings from, if no variable names others.
pub const OWN: &[&str] = &[".local/state/exeat", ".cache/exeat", OWN_SETTINGS];

/// The directory of the user's ceiling below a home directory.
pub const OWN_SETTINGS: &str = ".config/exeat";

/// The key that signs records, below a home directory.
pub const OWN_KEY: &str = ".local/state/exeat/audit.key";

/// Files and directories with credentials below a home directory, masked in every shown tree.
pub const CREDENTIALS: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/containers/auth.json",
    ".config/rclone",
    ".config/doctl",
    ".config/google-chrome",
    ".config/chromium",
    ".config/exeat",
    ".mozilla",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".config/pip",
    ".pip",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".terraform.d",
    ".terraformrc",
    ".vault-token",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/exeat",
    ".pgpass",
    ".my.cnf",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".config/github-copilot",
    ".huggingface",
    ".cache/huggingface/token",
    ".config/sops",
    ".age",
    ".s3cfg",
    ".boto",
    ".config/hcloud",
    ".config/stripe",
    ".config/heroku",
    ".config/ngrok",
    ".config/1Password",
    ".config/Bitwarden",
    ".config/composer",
    ".vercel",
    ".supabase",
    ".databrickscfg",
    ".snowsql",
    ".kaggle",
    ".oci",
    ".fly",
    ".tsh",
    ".Xauthority",
    ".electrum",
    ".bitcoin",
    ".thunderbird",
    ".msmtprc",
    ".authinfo",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
    ".node_repl_history",
];

/// Credential files that host programs replace at any time. A stage that sees one is not ended for that, but can then read it. One alone
/// gives little access: sockets are not reachable.
pub const REWRITTEN: &[&str] = &[
    ".Xauthority",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
    ".node_repl_history",
];

/// System files for root and its groups, masked if the caller is root. The stage owns them if it keeps root's kernel uid, and in a tree
/// of root's that is mapped for it.
pub const SYSTEM_CREDENTIALS: &[&str] = &[
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/ssh",
    "/etc/krb5.keytab",
    "/etc/NetworkManager/system-connections",
    "/etc/wireguard",
    "/etc/ppp",
    "/etc/pki/tls/private",
    "/etc/security/opasswd",
];

/// Variables of the caller that are passed to the stage.
pub const PASSED: &[&str] = &[
    "PATH",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LC_COLLATE",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NUMERIC",
    "LC_TIME",
    "TZ",
    "TERM",
    "COLORTERM",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "PAGER",
    "NIX_PATH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "RUSTUP_TOOLCHAIN",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "SOURCE_DATE_EPOCH",
];

/// Variables that name certificates. They are passed, and the file is shown if the view lacks it.
pub const CERTIFICATES: &[&str] = &[
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "NIX_SSL_CERT_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
];

/// The system's trusted certificates, shown to a stage with a work directory and hosts to reach.
pub const TRUST: &[&str] =
    &["/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted"];

/// Variables without which a package manager with a new cache asks its registry for a newer version of itself.
pub const NO_UPDATES: &[(&str, &str)] = &[("npm_config_update_notifier", "false")];

/// Variables that lead package managers to the private cache, with the directory in it.
pub const CACHES: &[(&str, &str)] = &[
    ("XDG_CACHE_HOME", ""),
    ("npm_config_cache", "npm"),
    ("YARN_CACHE_FOLDER", "yarn"),
    ("BUN_INSTALL_CACHE_DIR", "bun"),
    ("DENO_DIR", "deno"),
    ("PIP_CACHE_DIR", "pip"),
    ("UV_CACHE_DIR", "uv"),
    ("POETRY_CACHE_DIR", "poetry"),
    ("GOPATH", "go"),
    ("GOCACHE", "go-build"),
    ("GOMODCACHE", "go/pkg/mod"),
    ("CARGO_HOME", "cargo"),
    ("GRADLE_USER_HOME", "gradle"),
    ("NUGET_PACKAGES", "nuget"),
    ("COMPOSER_CACHE_DIR", "composer"),
    ("GEM_SPEC_CACHE", "gem"),
    ("PRE_COMMIT_HOME", "pre-commit"),
];

/// Settings and programs that tools use from a private cache, removed before each start. The rest is data and packages.
pub const CACHE_SETTINGS: &[&str] = &[
    "cargo/config",
    "cargo/config.toml",
    "cargo/credentials",
    "cargo/credentials.toml",
    "cargo/bin",
    "cargo/env",
    "gradle/init.d",
    "gradle/init.gradle",
    "gradle/init.gradle.kts",
    "gradle/gradle.properties",
    "go/bin",
];

/// Tokens that a scheduler or a CI service gives to a job. A pattern of variables does not pass them.
pub const JOB_TOKENS: &[&str] = &[
    "SLURM_JWT",
    "GITHUB_TOKEN",
    "ACTIONS_RUNTIME_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_CACHE_TOKEN",
    "CI_JOB_TOKEN",
    "CI_JOB_JWT",
    "CI_JOB_JWT_V2",
    "CI_BUILD_TOKEN",
    "CI_REGISTRY_PASSWORD",
    "CI_DEPLOY_PASSWORD",
    "CI_DEPENDENCY_PROXY_PASSWORD",
];

/// Variables of the caller that no stage needs and that would harm some, with their effect.
pub const DROPPED: &[(&str, &str)] = &[
    ("SSH_AUTH_SOCK", "host socket"),
    ("GPG_AGENT_INFO", "host socket"),
    ("DBUS_SESSION_BUS_ADDRESS", "host socket"),
    ("DOCKER_HOST", "host socket"),
    ("CONTAINER_HOST", "host socket"),
    ("DISPLAY", "host socket"),
    ("WAYLAND_DISPLAY", "host socket"),
    ("XDG_RUNTIME_DIR", "host sockets are in it"),
    ("ALL_PROXY", "another proxy"),
    ("all_proxy", "another proxy"),
    ("FTP_PROXY", "another proxy"),
    ("ftp_proxy", "another proxy"),
    ("RSYNC_PROXY", "another proxy"),
    ("NODE_TLS_REJECT_UNAUTHORIZED", "certificates would not be checked"),
    ("GIT_SSL_NO_VERIFY", "certificates would not be checked"),
    ("PYTHONHTTPSVERIFY", "certificates would not be checked"),
    ("LD_PRELOAD", "loads code of the host's"),
    ("LD_AUDIT", "loads code of the host's"),
];
