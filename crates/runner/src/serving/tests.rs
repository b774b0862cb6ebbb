use std::sync::mpsc;

use tokio::time::Instant;

use super::*;

/// R11: a task that blocks the thread delays the end by a bounded time, and its owner not at all.
#[tokio::test]
async fn r11_a_blocked_thread_is_left_alone() {
    let mut serving = ServingThread::start().unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let (begun_to, begun) = oneshot::channel();
    serving.spawn(async move {
        let _ = begun_to.send(());
        let _ = blocked.recv();
    });
    begun.await.unwrap();
    let began = Instant::now();
    assert!(!serving.end(Duration::ZERO).await);
    assert!(began.elapsed() < CLOSING + MARGIN * 2, "{:?}", began.elapsed());
    drop(release);
}

#[tokio::test]
async fn a_thread_ends_with_its_tasks() {
    let mut serving = ServingThread::start().unwrap();
    let (done_to, done) = oneshot::channel();
    serving.spawn(async move {
        let _ = done_to.send(());
    });
    assert_eq!(serving.run(async { Ok(7) }).await.unwrap(), 7);
    assert!(serving.end(Duration::ZERO).await);
    done.await.unwrap();
}
