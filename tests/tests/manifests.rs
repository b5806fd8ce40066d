//! What a schema cannot see in `deploy/`: that its parts fit each other, the configuration and the binary.
//!
//! Each rule is a function from the objects to its complaints, and is listed with what breaks it, so that a rule that
//! cannot fail is found. The files are read as they stand; where kubectl is present its rendering obeys the same rules.
//! Field names and types are left to `scripts/check-manifests.sh`. Nothing here meets a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// What `http.ops_listen` serves.
const SERVED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// The Secret that the base refers to and does not bring.
const EXTERNAL_SECRET: &str = "punctual-redis";
/// What the end of a drain needs: settles, the lease, the registration.
const AFTER_DRAIN: Duration = Duration::from_secs(10);

struct Rule {
    name: &'static str,
    complaints: fn(&[Value]) -> Vec<String>,
    /// Kind, place, and what is put there (JSON); the first object of the kind that has the place is changed.
    broken_by: &'static [(&'static str, &'static str, &'static str)],
}

const RULES: &[Rule] = &[
    Rule {
        name: "selectors pick what they are meant for",
        complaints: selectors,
        broken_by: &[
            ("Deployment", "/spec/selector/matchLabels/app.kubernetes.io~1name", r#""other""#),
            ("Deployment", "/spec/template/metadata/labels/app.kubernetes.io~1component", r#""other""#),
            ("Deployment", "/spec/template/spec/topologySpreadConstraints/0/labelSelector/matchLabels", r#"{"app": "punctual"}"#),
            ("Deployment", "/metadata/labels/app.kubernetes.io~1name", "null"),
            ("Service", "/spec/selector/app.kubernetes.io~1component", r#""store""#),
            ("Service", "/spec/selector", "{}"),
            ("PodDisruptionBudget", "/spec/selector/matchLabels/app.kubernetes.io~1name", r#""other""#),
        ],
    },
    Rule {
        name: "ports that are named exist",
        complaints: ports,
        broken_by: &[
            ("Deployment", "/spec/template/spec/containers/0/ports/0/name", r#""other""#),
            ("Deployment", "/spec/template/spec/containers/0/livenessProbe/httpGet/port", r#""http""#),
            ("Deployment", "/spec/template/spec/containers/0/readinessProbe/httpGet/port", "9090"),
            ("Service", "/spec/ports/0/targetPort", r#""http""#),
            ("Service", "/spec/ports/0/name", "null"),
        ],
    },
    Rule {
        name: "probes ask what the binary serves",
        complaints: probes,
        broken_by: &[
            ("Deployment", "/spec/template/spec/containers/0/startupProbe", "null"),
            ("Deployment", "/spec/template/spec/containers/0/startupProbe/httpGet/path", r#""/health""#),
            ("Deployment", "/spec/template/spec/containers/0/livenessProbe/httpGet/path", r#""/readyz""#),
            ("Deployment", "/spec/template/spec/containers/0/readinessProbe/httpGet/path", r#""/healthz""#),
        ],
    },
    Rule {
        name: "the listeners are the ports",
        complaints: listeners,
        broken_by: &[
            ("ConfigMap", "/data/PUNCTUAL__HTTP__OPS_LISTEN", r#""0.0.0.0:9091""#),
            ("ConfigMap", "/data/PUNCTUAL__HTTP__OPS_LISTEN", r#""127.0.0.1:9090""#),
            ("ConfigMap", "/data/PUNCTUAL__HTTP__OPS_LISTEN", "null"),
            ("ConfigMap", "/data/PUNCTUAL__HTTP__LISTEN", r#""0.0.0.0:7070""#),
            ("Deployment", "/spec/template/spec/containers/0/ports/0/containerPort", "9091"),
        ],
    },
    Rule {
        name: "settings are keys of the configuration",
        complaints: settings_are_keys,
        broken_by: &[
            ("ConfigMap", "/data", r#"{"PUNCTUAL__NODE__CONCURENCY": "64"}"#),
            ("ConfigMap", "/data", r#"{"PUNCTUAL_NODE_CONCURRENCY": "64"}"#),
            ("Deployment", "/spec/template/spec/containers/0/env/0/name", r#""PUNCTUAL__NAME""#),
        ],
    },
    Rule {
        name: "the grace period covers the drain",
        complaints: grace,
        broken_by: &[
            ("Deployment", "/spec/template/spec/terminationGracePeriodSeconds", "39"),
            ("Deployment", "/spec/template/spec/terminationGracePeriodSeconds", "null"),
            ("Deployment", "/spec/template/spec/containers/0/lifecycle/preStop/sleep/seconds", "11"),
            ("ConfigMap", "/data/PUNCTUAL__NODE__DRAIN_TIMEOUT", r#""31s""#),
            ("ConfigMap", "/data/PUNCTUAL__NODE__DRAIN_TIMEOUT", "null"),
        ],
    },
    Rule {
        name: "three nodes are replaced one at a time",
        complaints: replicas,
        broken_by: &[
            ("Deployment", "/spec/replicas", "2"),
            ("Deployment", "/spec/strategy/rollingUpdate/maxUnavailable", "2"),
            ("Deployment", "/spec/strategy/rollingUpdate/maxSurge", "0"),
            ("PodDisruptionBudget", "/spec/maxUnavailable", "0"),
            ("PodDisruptionBudget", "/kind", r#""Other""#),
        ],
    },
    Rule {
        name: "pods are restricted",
        complaints: restricted,
        broken_by: &[
            ("Deployment", "/spec/template/spec/enableServiceLinks", "true"),
            ("Deployment", "/spec/template/spec/automountServiceAccountToken", "null"),
            ("Deployment", "/spec/template/spec/securityContext/runAsNonRoot", "false"),
            ("Deployment", "/spec/template/spec/securityContext/seccompProfile", "null"),
            ("Deployment", "/spec/template/spec/containers/0/securityContext/allowPrivilegeEscalation", "true"),
            ("Deployment", "/spec/template/spec/containers/0/securityContext/readOnlyRootFilesystem", "false"),
            ("Deployment", "/spec/template/spec/containers/0/securityContext/capabilities", "{}"),
            ("Deployment", "/spec/template/spec/containers/0/resources/requests/cpu", "null"),
            ("Deployment", "/spec/template/spec/containers/0/resources/limits/memory", "null"),
        ],
    },
    Rule {
        name: "objects that are named exist",
        complaints: references,
        broken_by: &[
            ("Deployment", "/spec/template/spec/serviceAccountName", r#""default""#),
            ("Deployment", "/spec/template/spec/containers/0/envFrom/0/configMapRef/name", r#""other""#),
            ("Deployment", "/spec/template/spec/volumes/0/secret/secretName", r#""other""#),
        ],
    },
    Rule {
        name: "the node is told its pod's name and where its password is",
        complaints: identity,
        broken_by: &[
            ("Deployment", "/spec/template/spec/containers/0/args", r#"["dev"]"#),
            ("Deployment", "/spec/template/spec/containers/0/env/0/valueFrom/fieldRef/fieldPath", r#""spec.nodeName""#),
            ("Deployment", "/spec/template/spec/containers/0/env/1/value", r#""/etc/punctual/password""#),
            ("Deployment", "/spec/template/spec/containers/0/volumeMounts/0/mountPath", r#""/run/secrets""#),
            ("Deployment", "/spec/template/spec/volumes/0/secret/items/0/path", r#""redis""#),
            ("ConfigMap", "/data/PUNCTUAL__REDIS__URL", r#""redis://:secret@punctual-redis:6379""#),
            ("Deployment", "/spec/template/spec/containers/0/image", r#""punctual:latest""#),
        ],
    },
];

const TEMPLATE_LABELS: &str = "/spec/template/metadata/labels";

fn selectors(objects: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    for workload in workloads(objects) {
        let labels = at(workload, TEMPLATE_LABELS);
        let spread = list(workload, "/spec/template/spec/topologySpreadConstraints");
        let own = std::iter::once(at(workload, "/spec/selector/matchLabels"))
            .chain(spread.iter().map(|constraint| at(constraint, "/labelSelector/matchLabels")));
        for selector in own.filter(|selector| !selects(selector, labels)) {
            wrong.push(format!("{} does not select its own pods with {selector}", name(workload)));
        }
    }
    for object in objects {
        let selector = match object["kind"].as_str() {
            Some("Service") => at(object, "/spec/selector"),
            Some("PodDisruptionBudget") => at(object, "/spec/selector/matchLabels"),
            _ => continue,
        };
        let selected = workloads(objects).filter(|workload| selects(selector, at(workload, TEMPLATE_LABELS))).count();
        if selected != 1 {
            wrong.push(format!("{} selects the pods of {selected} workloads, not of 1", name(object)));
        }
    }
    // Generated objects carry no labels; nothing selects them.
    for object in objects.iter().filter(|object| !["ConfigMap", "Secret"].contains(&text(&object["kind"]))) {
        for label in ["name", "part-of"] {
            if !at(object, &format!("/metadata/labels/app.kubernetes.io~1{label}")).is_string() {
                wrong.push(format!("{} has no label app.kubernetes.io/{label}", name(object)));
            }
        }
    }
    wrong
}

fn ports(objects: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let has = |container: &Value, port: &Value| list(container, "/ports").iter().any(|known| known["name"] == *port);
    for workload in workloads(objects) {
        for container in containers(workload) {
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                if let Some(port) = container.pointer(&format!("/{probe}/httpGet/port"))
                    && !has(container, port)
                {
                    wrong.push(format!("{probe} of {} asks port {port}, which its container does not name", name(workload)));
                }
            }
        }
    }
    for service in of(objects, "Service") {
        for port in list(service, "/spec/ports") {
            let behind =
                workloads(objects).filter(|workload| selects(at(service, "/spec/selector"), at(workload, TEMPLATE_LABELS)));
            if !port["name"].is_string() || !behind.flat_map(containers).any(|container| has(container, &port["targetPort"])) {
                wrong.push(format!("{} has port {port}, which is unnamed or leads nowhere", name(service)));
            }
        }
    }
    wrong
}

fn probes(objects: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    // Only readiness may depend on Redis: liveness on it would restart every node in an outage.
    for (probe, wanted) in [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let path = text(at(node(objects), &format!("/{probe}/httpGet/path")));
        if path != wanted || !SERVED.contains(&path) {
            wrong.push(format!("{probe} asks {path:?}, not {wanted}"));
        }
    }
    wrong
}

fn listeners(objects: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let ops = list(node(objects), "/ports").iter().find(|port| port["name"] == "ops").map(|port| &port["containerPort"]);
    let listen = setting(objects, "PUNCTUAL__HTTP__OPS_LISTEN");
    let fits = listen.rsplit_once(':').is_some_and(|(address, port)| {
        ["0.0.0.0", "[::]"].contains(&address) && ops.and_then(Value::as_u64) == port.parse().ok()
    });
    if !fits {
        wrong.push(format!("http.ops_listen is {listen:?}, which the container's port {ops:?} does not reach"));
    }
    // Without tokens the server refuses to bind anything but loopback.
    let http = setting(objects, "PUNCTUAL__HTTP__LISTEN");
    if http != "none" {
        wrong.push(format!("http.listen is {http:?} and there are no http.tokens"));
    }
    wrong
}

fn settings_are_keys(objects: &[Value]) -> Vec<String> {
    let known = punctual_core::config::known_keys();
    let is_key =
        |name: &str| name.strip_prefix("PUNCTUAL__").is_some_and(|path| known.contains(&path.replace("__", ".").to_lowercase()));
    let names = settings(objects).into_keys().filter(|name| name.starts_with("PUNCTUAL"));
    names.filter(|name| !is_key(name)).map(|name| format!("{name} sets no key of the configuration")).collect()
}

fn grace(objects: &[Value]) -> Vec<String> {
    let seconds = |value: &Value| value.as_u64().map(Duration::from_secs);
    let grace = seconds(at(deployment(objects), "/spec/template/spec/terminationGracePeriodSeconds"));
    let pre_stop = seconds(at(node(objects), "/lifecycle/preStop/sleep/seconds"));
    let drain = punctual_core::duration::parse(setting(objects, "PUNCTUAL__NODE__DRAIN_TIMEOUT")).ok();
    match (grace, pre_stop, drain) {
        (Some(grace), Some(pre_stop), Some(drain)) if grace >= pre_stop + drain + AFTER_DRAIN => Vec::new(),
        _ => vec![format!("grace {grace:?} is not stated or less than preStop {pre_stop:?} + drain {drain:?} + {AFTER_DRAIN:?}")],
    }
}

fn replicas(objects: &[Value]) -> Vec<String> {
    let mut wrong = unlike(
        deployment(objects),
        &[
            ("/spec/replicas", json!(3)),
            ("/spec/strategy/rollingUpdate/maxUnavailable", json!(1)),
            ("/spec/strategy/rollingUpdate/maxSurge", json!(1)),
        ],
    );
    match of(objects, "PodDisruptionBudget").next() {
        Some(budget) => wrong.extend(unlike(budget, &[("/spec/maxUnavailable", json!(1))])),
        None => wrong.push("there is no PodDisruptionBudget".to_owned()),
    }
    wrong
}

fn restricted(objects: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    for workload in workloads(objects) {
        wrong.extend(unlike(
            workload,
            &[
                ("/spec/template/spec/enableServiceLinks", json!(false)),
                ("/spec/template/spec/automountServiceAccountToken", json!(false)),
                ("/spec/template/spec/securityContext/runAsNonRoot", json!(true)),
                ("/spec/template/spec/securityContext/seccompProfile/type", json!("RuntimeDefault")),
            ],
        ));
        for container in containers(workload) {
            wrong.extend(unlike(
                container,
                &[
                    ("/securityContext/allowPrivilegeEscalation", json!(false)),
                    ("/securityContext/readOnlyRootFilesystem", json!(true)),
                    ("/securityContext/capabilities/drop", json!(["ALL"])),
                ],
            ));
            for bound in ["requests/cpu", "requests/memory", "limits/cpu", "limits/memory"] {
                if !at(container, &format!("/resources/{bound}")).is_string() {
                    wrong.push(format!("{} states no {bound}", name(workload)));
                }
            }
        }
    }
    wrong
}

fn references(objects: &[Value]) -> Vec<String> {
    let mut named = vec![("ServiceAccount", at(deployment(objects), "/spec/template/spec/serviceAccountName"))];
    for workload in workloads(objects) {
        for volume in list(workload, "/spec/template/spec/volumes") {
            named.extend(volume.pointer("/secret/secretName").map(|secret| ("Secret", secret)));
        }
        for container in containers(workload) {
            for source in list(container, "/envFrom") {
                named.push(("ConfigMap", at(source, "/configMapRef/name")));
            }
            for variable in list(container, "/env") {
                named.extend(variable.pointer("/valueFrom/secretKeyRef/name").map(|secret| ("Secret", secret)));
            }
        }
    }
    let exists = |kind: &str, wanted: &Value| of(objects, kind).any(|object| object["metadata"]["name"] == *wanted);
    let external =
        |kind: &str, wanted: &Value| kind == "Secret" && wanted == EXTERNAL_SECRET && of(objects, kind).next().is_none();
    named.retain(|(kind, wanted)| !exists(kind, wanted) && !external(kind, wanted));
    named.into_iter().map(|(kind, wanted)| format!("there is no {kind} {wanted}")).collect()
}

fn identity(objects: &[Value]) -> Vec<String> {
    let mut wrong = unlike(
        node(objects),
        &[("/args", json!(["node"])), ("/image", json!(format!("punctual:{}", env!("CARGO_PKG_VERSION"))))],
    );
    if settings(objects).get("PUNCTUAL__NODE__NAME").is_none_or(|source| source["fieldRef"]["fieldPath"] != "metadata.name") {
        wrong.push("node.name is not the pod's name".to_owned());
    }
    let file = setting(objects, "PUNCTUAL__REDIS__PASSWORD_FILE");
    let volumes = list(deployment(objects), "/spec/template/spec/volumes");
    let mounted = list(node(objects), "/volumeMounts").iter().any(|mount| {
        let below = file.strip_prefix(text(&mount["mountPath"])).and_then(|rest| rest.strip_prefix('/'));
        let mut items =
            volumes.iter().filter(|volume| volume["name"] == mount["name"]).flat_map(|volume| list(volume, "/secret/items"));
        below.is_some_and(|below| items.any(|item| item["key"] == "password" && item["path"] == below))
    });
    if !mounted {
        wrong.push(format!("redis.password_file is {file:?}, which no Secret is mounted at"));
    }
    if setting(objects, "PUNCTUAL__REDIS__URL").contains('@') {
        wrong.push("redis.url carries a user or a password in a ConfigMap".to_owned());
    }
    wrong
}

#[test]
fn base_and_dev_obey_every_rule() {
    for overlay in ["base", "overlays/dev"] {
        obeys(overlay, &load(&manifests().join(overlay)));
    }
}

#[test]
fn what_kubectl_renders_obeys_every_rule() {
    for overlay in ["base", "overlays/dev"] {
        let rendered = match Command::new("kubectl").arg("kustomize").arg(manifests().join(overlay)).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: there is no kubectl to render {overlay}");
                continue;
            }
            rendered => rendered.expect("kubectl runs"),
        };
        assert!(rendered.status.success(), "{overlay}: {}", String::from_utf8_lossy(&rendered.stderr));
        obeys(overlay, &documents(&String::from_utf8(rendered.stdout).expect("YAML is UTF-8")));
    }
}

#[test]
fn every_rule_refuses_what_breaks_it() {
    let sound = load(&manifests().join("base"));
    for rule in RULES {
        assert!(!rule.broken_by.is_empty(), "nothing is known to break the rule that {}", rule.name);
        for (kind, place, broken) in rule.broken_by {
            let mut objects = sound.clone();
            let target = objects.iter_mut().filter(|object| object["kind"] == *kind).find_map(|object| object.pointer_mut(place));
            *target.unwrap_or_else(|| panic!("no {kind} has {place}")) =
                serde_json::from_str(broken).expect("the table holds JSON");
            assert_ne!(objects, sound, "{kind} {place} is {broken} already");
            let complaints = (rule.complaints)(&objects);
            assert!(!complaints.is_empty(), "{kind} {place} = {broken} keeps the rule that {}", rule.name);
        }
    }
}

#[test]
fn dev_brings_the_redis_that_its_nodes_look_for() {
    let objects = load(&manifests().join("overlays/dev"));
    let url = setting(&objects, "PUNCTUAL__REDIS__URL");
    let served = of(&objects, "Service").any(|service| {
        let ports = list(service, "/spec/ports");
        ports.iter().any(|port| url == format!("redis://{}:{}", text(&service["metadata"]["name"]), port["port"]))
    });
    assert!(served, "no Service answers at {url}");
    let secret = of(&objects, "Secret").find(|secret| secret["metadata"]["name"] == EXTERNAL_SECRET);
    assert!(secret.is_some_and(|secret| secret["data"]["password"].is_string()), "dev brings no password");
}

#[test]
fn image_is_built_by_the_pinned_toolchain_and_runs_as_the_pod_does() {
    let dockerfile = read(&root().join("deploy/Dockerfile"));
    let toolchain = read(&root().join("rust-toolchain.toml"));
    let channel =
        toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).expect("a channel is pinned").trim_matches('"');
    let user = at(deployment(&load(&manifests().join("base"))), "/spec/template/spec/securityContext/runAsUser").clone();
    for line in [format!("FROM rust:{channel}-bookworm AS build"), format!("USER {user}:{user}")] {
        assert!(dockerfile.lines().any(|known| known == line), "deploy/Dockerfile has no line {line:?}");
    }
}

fn obeys(overlay: &str, objects: &[Value]) {
    let complaints: Vec<String> = RULES
        .iter()
        .flat_map(|rule| (rule.complaints)(objects).into_iter().map(move |complaint| format!("{}: {complaint}", rule.name)))
        .collect();
    assert!(complaints.is_empty(), "{overlay}:\n{}", complaints.join("\n"));
}

/// Complaints about the places that do not hold what they should.
fn unlike(object: &Value, wanted: &[(&str, Value)]) -> Vec<String> {
    let wrong = wanted.iter().filter(|(place, value)| at(object, place) != value);
    wrong.map(|(place, value)| format!("{} has {} at {place}, not {value}", name(object), at(object, place))).collect()
}

fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().is_some_and(|wanted| {
        !wanted.is_empty() && wanted.iter().all(|(label, value)| labels.get(label).is_some_and(|known| known == value))
    })
}

fn of<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == *kind)
}

fn workloads(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects.iter().filter(|object| ["Deployment", "StatefulSet"].contains(&text(&object["kind"])))
}

fn containers(workload: &Value) -> &[Value] {
    list(workload, "/spec/template/spec/containers")
}

fn deployment(objects: &[Value]) -> &Value {
    of(objects, "Deployment").find(|object| object["metadata"]["name"] == "punctual").expect("a Deployment is named punctual")
}

/// The container that runs the node.
fn node(objects: &[Value]) -> &Value {
    containers(deployment(objects))
        .iter()
        .find(|container| container["name"] == "punctual")
        .expect("a container is named punctual")
}

/// The environment of the node: a name with its text, or with where that comes from.
fn settings(objects: &[Value]) -> BTreeMap<&str, &Value> {
    let mut settings: BTreeMap<&str, &Value> = BTreeMap::new();
    for source in list(node(objects), "/envFrom") {
        let wanted = at(source, "/configMapRef/name");
        for data in
            of(objects, "ConfigMap").filter(|map| map["metadata"]["name"] == *wanted).filter_map(|map| map["data"].as_object())
        {
            settings.extend(data.iter().map(|(name, value)| (name.as_str(), value)));
        }
    }
    for variable in list(node(objects), "/env") {
        settings.insert(text(&variable["name"]), variable.get("value").unwrap_or(&variable["valueFrom"]));
    }
    settings
}

fn setting<'a>(objects: &'a [Value], name: &str) -> &'a str {
    settings(objects).get(name).map_or("", |value| text(value))
}

fn at<'a>(object: &'a Value, place: &str) -> &'a Value {
    static NOTHING: Value = Value::Null;
    object.pointer(place).unwrap_or(&NOTHING)
}

fn list<'a>(object: &'a Value, place: &str) -> &'a [Value] {
    match at(object, place) {
        Value::Array(items) => items,
        _ => &[],
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn name(object: &Value) -> String {
    let name = object.pointer("/metadata/name").unwrap_or(&object["name"]);
    format!("{} {}", object["kind"].as_str().unwrap_or("Container"), text(name))
}

/// Reads a kustomization and what it refers to, as far as this project uses kustomize: resources, generators, images.
fn load(directory: &Path) -> Vec<Value> {
    let kustomization = documents(&read(&directory.join("kustomization.yaml"))).remove(0);
    let mut objects = Vec::new();
    for resource in list(&kustomization, "/resources") {
        let path = directory.join(text(resource));
        objects.extend(if path.is_dir() { load(&path) } else { documents(&read(&path)) });
    }
    for (generators, kind) in [("/configMapGenerator", "ConfigMap"), ("/secretGenerator", "Secret")] {
        for generator in list(&kustomization, generators) {
            let files = list(generator, "/envs").iter().map(|file| read(&directory.join(text(file))));
            let literals = list(generator, "/literals").iter().map(|literal| text(literal).to_owned());
            let mut data = Map::new();
            for line in files.chain(literals).flat_map(|lines| lines.lines().map(str::to_owned).collect::<Vec<_>>()) {
                if let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
                    data.insert(name.to_owned(), json!(value));
                }
            }
            let same = |object: &&mut Value| object["kind"] == kind && object["metadata"]["name"] == generator["name"];
            match objects.iter_mut().find(same).and_then(|object| object["data"].as_object_mut()) {
                Some(known) => known.extend(data),
                None => objects.push(json!({"kind": kind, "metadata": {"name": generator["name"]}, "data": data})),
            }
        }
    }
    for image in list(&kustomization, "/images") {
        let containers = objects.iter_mut().filter_map(|object| object.pointer_mut("/spec/template/spec/containers"));
        for container in containers.filter_map(Value::as_array_mut).flatten() {
            if container["image"] == image["name"] {
                container["image"] = json!(format!("{}:{}", text(&image["name"]), text(&image["newTag"])));
            }
        }
    }
    objects
}

fn documents(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("failed to read YAML: {error}\n{yaml}"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
}

fn manifests() -> PathBuf {
    root().join("deploy/k8s")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}
