//! `order.close`: closes an order that was not paid in time.
//!
//! The shop is asked first, so an order that was paid meanwhile, or that an earlier attempt closed, is left alone and
//! the job is done: running it twice does no harm. `Punctual-Claim` goes along with the closing, so that the shop can
//! refuse a worker that lost its claim. An order that the shop does not know is dead; a shop that does not answer is
//! asked again. Absent on purpose: a way to close a paid order.

use punctual_core::handler::{JobArgs, JobContext, Outcome};
use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::outbound::{self, Call};

/// The order to close.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CloseOrder {
    /// Its number.
    pub order_id: u64,
    /// The address of the shop's service, such as `http://127.0.0.1:8080`; `handlers.http.allow` must list it.
    pub shop: String,
}

impl JobArgs for CloseOrder {
    const HANDLER: &'static str = "order.close";
}

/// What the shop says of an order.
#[derive(Deserialize)]
struct Order {
    state: OrderState,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OrderState {
    Unpaid,
    Paid,
    Closed,
}

/// Closes the order if it is still unpaid; the result is `{"order_id":7,"closed":true,"because":"unpaid"}`.
pub async fn close_order(args: CloseOrder, job: JobContext) -> Outcome {
    run(&args, &job).await.unwrap_or_else(|failure| failure)
}

async fn run(args: &CloseOrder, job: &JobContext) -> Result<Outcome, Outcome> {
    let id = args.order_id;
    let done = |closed: bool, because: &str| Ok(Outcome::done(json!({ "order_id": id, "closed": closed, "because": because })));
    match ask(args, job).await? {
        OrderState::Paid => return done(false, "paid"),
        OrderState::Closed => return done(false, "already closed"),
        OrderState::Unpaid => {}
    }
    let url = outbound::join(&args.shop, &["orders", &id.to_string(), "close"])?;
    let reply = outbound::send(Call::new(Method::POST, url), job).await?;
    if reply.is_success() {
        return done(true, "unpaid");
    }
    if reply.status != 409 {
        return Err(reply.failure());
    }
    // The order changed between question and closing, or the claim is stale: the shop knows which.
    match ask(args, job).await? {
        OrderState::Paid => done(false, "paid"),
        OrderState::Closed => done(false, "already closed"),
        OrderState::Unpaid => Err(Outcome::retry(format!("the shop refused to close order {id}: {}", reply.text(200)))),
    }
}

async fn ask(args: &CloseOrder, job: &JobContext) -> Result<OrderState, Outcome> {
    let id = args.order_id.to_string();
    let reply = outbound::send(Call::new(Method::GET, outbound::join(&args.shop, &["orders", &id])?), job).await?;
    match reply.status {
        200..=299 => {}
        404 => return Err(Outcome::dead(format!("the shop has no order {id}"))),
        _ => return Err(reply.failure()),
    }
    // Half an answer or a maintenance page may be better next time.
    let order: Order = serde_json::from_slice(&reply.body)
        .map_err(|error| Outcome::retry(format!("the shop's answer about order {id} cannot be read: {error}")))?;
    Ok(order.state)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::{Server, answer, calling, error_of, result_of};

    /// A shop with one order in this state; closing it answers with `closing`.
    async fn shop(state: &'static str, closing: u16) -> Server {
        let state = Arc::new(Mutex::new(state));
        Server::start(move |request| {
            let mut state = state.lock().unwrap();
            match request.line.as_str() {
                "GET /orders/7 HTTP/1.1" => answer(200, "", &json!({ "order_id": 7, "state": *state }).to_string()),
                "POST /orders/7/close HTTP/1.1" => {
                    *state = if closing == 409 { "paid" } else { "closed" };
                    answer(closing, "", "")
                }
                _ => answer(404, "", ""),
            }
        })
        .await
    }

    async fn close(order_id: u64, server: &Server) -> Outcome {
        close_order(CloseOrder { order_id, shop: server.url("") }, calling(&[&server.url("/")])).await
    }

    #[tokio::test]
    async fn an_unpaid_order_is_closed_once() {
        let shop = shop("unpaid", 200).await;
        assert_eq!(result_of(&close(7, &shop).await), json!({ "order_id": 7, "closed": true, "because": "unpaid" }));
        assert_eq!(result_of(&close(7, &shop).await), json!({ "order_id": 7, "closed": false, "because": "already closed" }));
        assert_eq!(shop.lines(), ["GET /orders/7", "POST /orders/7/close", "GET /orders/7"]);
        assert_eq!(shop.requests()[1].header("punctual-claim"), ["42"]);
    }

    #[tokio::test]
    async fn a_paid_order_is_left_alone() {
        let shop = shop("paid", 200).await;
        assert_eq!(result_of(&close(7, &shop).await)["because"], "paid");
        assert_eq!(shop.requests().len(), 1);
    }

    #[tokio::test]
    async fn an_order_that_is_paid_while_it_is_closed_is_done() {
        let shop = shop("unpaid", 409).await;
        assert_eq!(result_of(&close(7, &shop).await), json!({ "order_id": 7, "closed": false, "because": "paid" }));
    }

    #[tokio::test]
    async fn an_unknown_order_is_dead_and_a_broken_shop_is_asked_again() {
        let busy = shop("unpaid", 503).await;
        assert_eq!(close(8, &busy).await, Outcome::dead("the shop has no order 8"));
        assert!(matches!(close(7, &busy).await, Outcome::Retry(_)));
        for body in ["<html>", r#"{"state":"lost"}"#, ""] {
            let broken = Server::start(move |_| answer(200, "", body)).await;
            assert!(error_of(&close(7, &broken).await).contains("cannot be read"), "{body}");
        }
        let unlisted = close_order(CloseOrder { order_id: 7, shop: busy.url("") }, calling(&[])).await;
        assert!(matches!(&unlisted, Outcome::Dead(reason) if reason.contains("handlers.http.allow")), "{unlisted:?}");
    }
}
