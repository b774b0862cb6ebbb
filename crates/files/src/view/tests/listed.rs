//! What is found by lists of directories, and by asking for each name.

use super::*;
use crate::listing::settled;

/// The findings of a view that must not depend on how they are found.
fn findings(scene: &Scene) -> String {
    let files = Files { ro: vec![bind(&scene.home())], ..Files::default() };
    let built = scene.build(&files, &scene.project(), None);
    let watched = built.watched.iter().map(|it| {
        (&it.tree, &it.names, &it.patterns, &it.links, &it.pointers, &it.bare, &it.repositories, &it.covered)
    });
    format!("{:#?}", (&built.mounts, watched.collect::<Vec<_>>(), &built.notes, &built.lost))
}

/// Directories that have just changed are not listed: there, each name is asked for.
#[test]
fn b12_lists_and_questions_find_the_same_names() {
    for (number, git) in [".git/config", ".git"].into_iter().enumerate() {
        let scene = Scene::new(&format!("listed-{number}"));
        let project = scene.project();
        let names = [
            "home/.ssh/id",
            "home/.config/gh/hosts.yml",
            "home/.netrc",
            "home/project/.envrc",
            "home/project/mise.prod.toml",
            "home/project/mise/config.prod.toml",
            "home/project/.VSCode/tasks.json",
            "home/project/tools/config.toml",
        ];
        names.iter().for_each(|name| scene.make(name));
        scene.make(&format!("home/project/{git}"));
        symlink("tools", project.join(".cargo")).unwrap();
        symlink("nowhere", project.join(".idea")).unwrap();
        let asked = findings(&scene);
        for dir in [scene.home(), scene.home().join(".config"), project.clone()] {
            settled(&dir);
        }
        if project.join(".git").is_dir() {
            settled(&project.join(".git"));
        }
        assert_eq!(findings(&scene), asked);
        for name in ["home/.ssh", "home/.netrc", "project/.envrc", "project/mise.prod.toml", "project/tools"]
        {
            assert!(asked.contains(name), "{name}");
        }
    }
}
