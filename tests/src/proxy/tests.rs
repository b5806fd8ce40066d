//! The proxy in front of a real Redis.

use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::{Proxy, Rule, any_command, command, command_with, script_call};
use crate::redis_server::{RedisServer, fresh_namespace};
use crate::wait::eventually;

const SECOND: Duration = Duration::from_secs(1);

// For what is meant to time out.
const SHORT: Duration = Duration::from_millis(300);

struct Scene {
    proxy: Proxy,
    direct: MultiplexedConnection,
    key: String,
}

async fn scene() -> Scene {
    let server = RedisServer::shared().await.unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    Scene { proxy, direct: server.conn().await.unwrap(), key: fresh_namespace() }
}

async fn connect(proxy: &Proxy, timeout: Duration) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(timeout)).set_connection_timeout(Some(timeout));
    redis::Client::open(proxy.url()).unwrap().get_multiplexed_async_connection_with_config(&config).await
}

async fn incr(conn: &mut MultiplexedConnection, key: &str) -> redis::RedisResult<u64> {
    redis::cmd("INCR").arg(key).query_async(conn).await
}

async fn value(conn: &mut MultiplexedConnection, key: &str) -> u64 {
    redis::cmd("GET").arg(key).query_async::<Option<u64>>(conn).await.unwrap().unwrap_or(0)
}

#[tokio::test]
async fn passes_pipelines_large_values_and_counts() {
    let Scene { proxy, key, .. } = scene().await;
    let mut conn = connect(&proxy, 10 * SECOND).await.unwrap();
    let blob = vec![b'\n'; 3_000_000];
    let mut pipe = redis::pipe();
    pipe.set(&key, &blob).ignore().get(&key);
    for _ in 0..1_000 {
        pipe.cmd("ECHO").arg("x").ignore();
    }
    let counted = proxy.count(command_with("echo", "x"));
    let (back,): (Vec<u8>,) = pipe.query_async(&mut conn).await.unwrap();
    assert_eq!(back, blob);
    assert_eq!((counted.fired(), proxy.connections(), proxy.open()), (1_000, 1, 1));
    assert_eq!(proxy.commands_by_name()["ECHO"], 1_000);
    drop(conn);
    eventually(5 * SECOND, "the close to come through", async || (proxy.open() == 0).then_some(())).await.unwrap();
}

#[tokio::test]
async fn cut_reply_executes_swallows_and_cuts_as_often_as_told() {
    let Scene { proxy, mut direct, key } = scene().await;
    let rule = proxy.cut_reply(command_with("INCR", &key), 2);
    for cuts in 1..=2 {
        let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
        // The reply before the matched one arrives, the one behind it does not.
        let (before, cut, behind) = tokio::join!(
            async { redis::cmd("ECHO").arg("a").query_async::<String>(&mut conn.clone()).await },
            async { incr(&mut conn.clone(), &key).await },
            async { redis::cmd("ECHO").arg("b").query_async::<String>(&mut conn.clone()).await },
        );
        assert_eq!(before.unwrap(), "a");
        assert!(cut.as_ref().is_err_and(|error| error.is_connection_dropped() || error.is_io_error()), "{cut:?}");
        assert!(behind.is_err());
        assert_eq!(value(&mut direct, &key).await, cuts, "the server has executed it once");
        assert_eq!(rule.fired(), cuts);
        assert!(incr(&mut conn, "other").await.is_err(), "the connection is closed");
    }
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    assert_eq!(incr(&mut conn, &key).await.unwrap(), 3);
}

#[tokio::test]
async fn cut_reply_of_a_blocking_move_comes_after_the_move() {
    let Scene { proxy, mut direct, key } = scene().await;
    let rule = proxy.cut_reply(command("BRPOPLPUSH"), 1);
    let mut conn = connect(&proxy, 10 * SECOND).await.unwrap();
    let target = format!("{key}-taken");
    let blocked = redis::cmd("BRPOPLPUSH").arg(&key).arg(&target).arg(0).to_owned();
    let blocked = tokio::spawn(async move { blocked.query_async::<String>(&mut conn).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!blocked.is_finished() && rule.fired() == 0);
    redis::cmd("LPUSH").arg(&key).arg("job").exec_async(&mut direct).await.unwrap();
    assert!(blocked.await.unwrap().is_err());
    let taken: Vec<String> = redis::cmd("LRANGE").arg(&target).arg(0).arg(-1).query_async(&mut direct).await.unwrap();
    assert_eq!((taken.as_slice(), rule.fired()), (["job".to_owned()].as_slice(), 1));
}

#[tokio::test]
async fn answer_error_keeps_the_order_of_replies_and_does_not_forward() {
    let Scene { proxy, mut direct, key } = scene().await;
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    let rule = proxy.answer_error(command("INCR"), "LOADING Redis is loading the dataset in memory", 2);
    let mut tasks = Vec::new();
    for index in 0..4 {
        let (mut conn, key) = (conn.clone(), key.clone());
        tasks.push(async move {
            let echo: String = redis::cmd("ECHO").arg(index).query_async(&mut conn.clone()).await.unwrap();
            (echo, incr(&mut conn, &key).await)
        });
    }
    let answers = futures_util::future::join_all(tasks).await;
    for (index, (echo, _)) in answers.iter().enumerate() {
        assert_eq!(*echo, index.to_string());
    }
    let errors: Vec<_> = answers.iter().filter_map(|(_, answer)| answer.as_ref().err()).collect();
    assert_eq!((errors.len(), rule.fired(), rule.left()), (2, 2, 0));
    assert!(errors.iter().all(|error| error.code() == Some("LOADING")), "{errors:?}");
    assert_eq!(value(&mut direct, &key).await, 2);
    // Alone on an idle connection the answer comes at once, without waiting for the server to say something.
    proxy.answer_error(any_command(), "BUSY script", 1);
    assert_eq!(incr(&mut conn, &key).await.unwrap_err().code(), Some("BUSY"));
}

#[tokio::test]
async fn delayed_command_arrives_late_even_when_the_client_has_gone() {
    let Scene { proxy, mut direct, key } = scene().await;
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    conn.set_response_timeout(SHORT);
    let rule = proxy.delay_command(command("INCR"), 2 * SECOND);
    assert!(incr(&mut conn, &key).await.is_err());
    drop(conn);
    assert_eq!((value(&mut direct, &key).await, rule.fired()), (0, 1));
    let mut late = async || (value(&mut direct.clone(), &key).await == 1).then_some(());
    eventually(5 * SECOND, "the late write", &mut late).await.unwrap();
    rule.stop();
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    assert_eq!(incr(&mut conn, &key).await.unwrap(), 2);
}

#[tokio::test]
async fn delay_applies_to_both_directions_and_ends() {
    let Scene { proxy, key, .. } = scene().await;
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    proxy.delay(Duration::from_millis(300));
    let start = Instant::now();
    incr(&mut conn, &key).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(600), "{:?}", start.elapsed());
    proxy.pass();
    let start = Instant::now();
    incr(&mut conn, &key).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
}

#[tokio::test]
async fn black_hole_loses_and_its_connections_stay_dead_while_new_ones_work() {
    let Scene { proxy, mut direct, key } = scene().await;
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    conn.set_response_timeout(SHORT);
    let mut idle = connect(&proxy, 5 * SECOND).await.unwrap();
    proxy.black_hole();
    assert!(incr(&mut conn, &key).await.unwrap_err().is_timeout());
    assert!(connect(&proxy, SHORT).await.is_err(), "accepted, but nobody answers");
    proxy.pass();
    assert!(incr(&mut conn, &key).await.is_err());
    assert_eq!(value(&mut direct, &key).await, 0);
    assert_eq!(incr(&mut idle, &key).await.unwrap(), 1, "a connection that lost nothing goes on");
    let mut fresh = connect(&proxy, 5 * SECOND).await.unwrap();
    assert_eq!(incr(&mut fresh, &key).await.unwrap(), 2);
}

#[tokio::test]
async fn server_serves_a_blocked_client_that_vanished_in_the_black_hole() {
    let Scene { proxy, mut direct, key } = scene().await;
    let mut conn = connect(&proxy, 10 * SECOND).await.unwrap();
    let target = format!("{key}-taken");
    let blocked = redis::cmd("BRPOPLPUSH").arg(&key).arg(&target).arg(0).to_owned();
    let blocked = tokio::spawn(async move { blocked.query_async::<String>(&mut conn).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.black_hole();
    blocked.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    redis::cmd("LPUSH").arg(&key).arg("job").exec_async(&mut direct).await.unwrap();
    let taken: u64 = redis::cmd("LLEN").arg(&target).query_async(&mut direct).await.unwrap();
    assert_eq!(taken, 1);
    proxy.pass();
    eventually(5 * SECOND, "the server's side to close", async || (proxy.open() == 0).then_some(())).await.unwrap();
}

#[tokio::test]
async fn stall_holds_back_and_then_delivers() {
    let Scene { proxy, mut direct, key } = scene().await;
    let mut conn = connect(&proxy, 10 * SECOND).await.unwrap();
    proxy.stall();
    let (task_key, mut task_conn) = (key.clone(), conn.clone());
    let task = tokio::spawn(async move { incr(&mut task_conn, &task_key).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!task.is_finished());
    assert_eq!(value(&mut direct, &key).await, 0);
    proxy.pass();
    assert_eq!(task.await.unwrap().unwrap(), 1);
    assert_eq!(incr(&mut conn, &key).await.unwrap(), 2);
}

#[tokio::test]
async fn cut_closes_all_and_refuse_turns_new_ones_away_until_pass() {
    let Scene { proxy, key, .. } = scene().await;
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    for _ in 0..20 {
        proxy.refuse();
        let refused = tokio::net::TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        incr(&mut conn, &key).await.unwrap();
        proxy.cut();
        assert_eq!(proxy.open(), 0);
        assert!(incr(&mut conn, &key).await.is_err());
        proxy.pass();
        conn = connect(&proxy, 5 * SECOND).await.unwrap();
    }
    assert_eq!(incr(&mut conn, &key).await.unwrap(), 21);
}

#[tokio::test]
async fn retarget_sends_new_connections_elsewhere() {
    let (first, second) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let proxy = Proxy::start(first.port()).unwrap();
    let mut old = connect(&proxy, 5 * SECOND).await.unwrap();
    proxy.retarget(second.port());
    let mut new = connect(&proxy, 5 * SECOND).await.unwrap();
    incr(&mut old, "k").await.unwrap();
    assert_eq!(incr(&mut new, "k").await.unwrap(), 1);
}

#[tokio::test]
async fn subscriptions_pass_and_restarts_of_the_server_are_seen() {
    let mut server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let client = redis::Client::open(proxy.url()).unwrap();
    let mut subscriber = client.get_async_pubsub().await.unwrap();
    subscriber.subscribe(&["a", "b"]).await.unwrap();
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    for text in ["1", "2", "3"] {
        redis::cmd("PUBLISH").arg("b").arg(text).exec_async(&mut conn).await.unwrap();
    }
    let mut messages = subscriber.into_on_message();
    for text in ["1", "2", "3"] {
        let message = tokio::time::timeout(5 * SECOND, futures_util::StreamExt::next(&mut messages)).await.unwrap().unwrap();
        assert_eq!(message.get_payload::<String>().unwrap(), text);
    }
    server.kill9();
    let gone = tokio::time::timeout(5 * SECOND, futures_util::StreamExt::next(&mut messages)).await.unwrap();
    assert!(gone.is_none(), "the death of the server ends the subscription");
    server.restart().await.unwrap();
    let mut conn = connect(&proxy, 5 * SECOND).await.unwrap();
    assert_eq!(incr(&mut conn, "k").await.unwrap(), 1);
}

#[test]
fn matchers_and_times() {
    let args = |text: &str| -> Vec<Vec<u8>> { text.split(' ').map(|arg| arg.as_bytes().to_vec()).collect() };
    assert!(script_call()(&args("evalsha abc 1 {ns:q}:ready")) && !script_call()(&args("GET evalsha")));
    assert!(command_with("EVALSHA", "ns:q")(&args("evalsha abc 1 {ns:q}:ready")));
    assert!(!command_with("EVALSHA", "evalsha")(&args("evalsha abc 0")), "the name is no argument");
    for (times, left) in [(0, 0), (2, 0), (Rule::ALWAYS, Rule::ALWAYS)] {
        let rule = Rule::new(Box::new(any_command()), super::Action::Count, times);
        let taken = (0..3).filter(|_| rule.state.takes(&args("PING"))).count();
        assert_eq!((taken as u64, rule.left()), (times.min(3), left));
    }
}
