//! Provides JSON Schemas (draft 2020-12) of what this crate reads, for editors and for programs that write it.
//!
//! They are built from the tables of the readers. A schema describes the form of a value. Only the readers check
//! that a text is a valid rule, host name or preset.

use serde_json::{Map, Value, json};

use crate::effect::EffectKind;
use crate::file::keys::{KEYS, Key, Shape};
use crate::file::sections::MAX_STAGE;
use crate::file::{FileRole, SCHEMA};
use crate::host_port::TAKEN;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Returns the schema of a policy file or of a ceiling, for TOML and JSON.
pub fn policy_json_schema(role: FileRole) -> Value {
    let title = match role {
        FileRole::Policy => "exeat policy",
        FileRole::Ceiling => "exeat ceiling",
    };
    let mut schema = object(table("", role));
    schema.insert("$schema".into(), DRAFT.into());
    let name = title.replace("exeat ", "urn:exeat:");
    schema.insert("$id".into(), format!("{name}:{SCHEMA}").into());
    schema.insert("title".into(), title.into());
    schema.insert("$defs".into(), definitions(role));
    Value::Object(schema)
}

/// Returns the schema of what a stage declares: a list of effects, or one effect.
pub fn effects_json_schema() -> Value {
    let effects: Vec<Value> = EffectKind::ALL.into_iter().map(effect).collect();
    json!({
        "$schema": DRAFT,
        "$id": format!("urn:exeat:effects:{SCHEMA}"),
        "title": "exeat effects",
        "oneOf": [
            {"type": "array", "items": {"$ref": "#/$defs/effect"}},
            {"$ref": "#/$defs/effect"},
        ],
        "$defs": {"effect": {"oneOf": effects}},
    })
}

fn effect(kind: EffectKind) -> Value {
    let mut properties = Map::new();
    properties.insert("effect".into(), json!({"const": kind.tag()}));
    let mut required = vec!["effect"];
    if let Some(field) = kind.field() {
        let value = match kind {
            EffectKind::Cost => json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
            EffectKind::FsRead | EffectKind::FsWrite => {
                json!({"type": "string", "pattern": "^(?!(.*/)?\\.\\.(/|$))(/|~$|~/)"})
            }
            EffectKind::NetworkHosts => {
                json!({"type": "array", "items": {"type": "string", "pattern": "^[^!\\s][^\\s]*$"}})
            }
            _ => json!({"type": "string"}),
        };
        properties.insert(field.into(), value);
        required.push(field);
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// Returns the properties of a section.
fn table(section: &str, role: FileRole) -> Map<String, Value> {
    let here = |key: &&Key| {
        key.section == section && key.shape != Shape::Later && key.only.is_none_or(|only| only == role)
    };
    let property = |key: &Key| {
        let mut property = value(key, role);
        property.insert("description".into(), key.about.into());
        (key.name.to_owned(), Value::Object(property))
    };
    KEYS.iter().filter(here).map(property).collect()
}

fn object(properties: Map<String, Value>) -> Map<String, Value> {
    map(json!({"type": "object", "properties": properties, "additionalProperties": false}))
}

fn value(key: &Key, role: FileRole) -> Map<String, Value> {
    let list = |of: &str| json!({"type": "array", "items": {"$ref": format!("#/$defs/{of}")}});
    map(match key.shape {
        Shape::Table => Value::Object(object(table(key.name, role))),
        Shape::NextHop => {
            let mut inner = object(table(&format!("{}.{}", key.section, key.name), role));
            inner.insert("required".into(), json!(["proxy"]));
            Value::Object(inner)
        }
        Shape::Tables => {
            let mut item = object(table(&format!("{}.{}", key.section, key.name), role));
            // The key appears in the same schema, because strict readers accept no required name without a
            // description.
            let one = |key: &str| json!({"properties": {key: true}, "required": [key]});
            item.insert("anyOf".into(), json!([one("allow"), one("deny")]));
            json!({"type": "array", "items": item})
        }
        // The numbers of a schema are those of JSON.
        Shape::Version => json!({"const": i64::try_from(SCHEMA).unwrap_or_default()}),
        Shape::Stage => json!({"type": "string", "minLength": 1, "maxLength": MAX_STAGE}),
        Shape::Text => json!({"type": "string"}),
        Shape::Flag => json!({"type": "boolean"}),
        Shape::Day => json!({"type": "string", "format": "date"}),
        Shape::Rules => list("rule"),
        Shape::HostPorts => json!({"type": "array", "items": {"anyOf": [
            {"type": "integer", "minimum": 1, "maximum": u16::MAX, "not": {"enum": TAKEN.map(|(port, _)| port)}},
            {"type": "string", "pattern": format!("^({PORT}:)?{}{PORT}$", exclude(TAKEN.map(|(port, _)| port)))},
        ]}}),
        Shape::Presets | Shape::Protected => json!({"type": "array", "items": {"type": "string"}}),
        Shape::Binds => list("bind"),
        Shape::Paths => list("path"),
        Shape::Names => list("variable"),
        Shape::Variables => json!({
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/variable"},
            "additionalProperties": {"type": "string"},
        }),
        Shape::Span => json!({"$ref": "#/$defs/span"}),
        Shape::Size => json!({"$ref": "#/$defs/size"}),
        // It goes by the number of digits, because a pattern cannot count.
        Shape::Memory => json!({
            "description": "at least 1MiB",
            "type": "string",
            "pattern": "^([0-9]{7,}|[0-9]{4,}[kK]([iI]?[bB])?|[0-9]+[mMgGtT]([iI]?[bB])?)$",
            "examples": ["512MiB", "2GiB"],
        }),
        Shape::Count(limit) => {
            let range = limit.range();
            json!({"type": "integer", "minimum": range.start(), "maximum": range.end()})
        }
        Shape::Upstream => json!({"type": "string", "pattern": "^[hH][tT][tT][pP]://[^/@]+:[0-9]+/?$"}),
        Shape::Auth => json!({"type": "string", "pattern": "^(file:.+|env:[A-Za-z_][A-Za-z0-9_]*)$"}),
        Shape::Bypass => json!({"type": "array", "items": {"type": "string", "pattern": "^[^!\\s][^\\s]*$"}}),
        Shape::OneOf(words) => json!({"enum": words}),
        Shape::EffectKinds => {
            json!({"type": "array", "items": {"enum": EffectKind::ALL.map(EffectKind::token)}})
        }
        Shape::Later => Value::Bool(false),
    })
}

fn definitions(role: FileRole) -> Value {
    json!({
        "rule": {
            "description": "a host name, `*.` and a host name, an address or a network; then `:` and ports, if not the usual ones",
            "type": "string",
            "pattern": "^(?!.*://)[^\\s]+$",
            "examples": ["api.example.com", "*.cdn.example.com:443,8443", "10.20.0.0/16:5432"],
        },
        "bind": {
            "description": "HOST or HOST:DEST; HOST is relative to this file unless it starts with `/` or `~/`",
            "type": "string",
            "pattern": match role {
                FileRole::Policy => "^(?!~[^/:])[^:]+(:(?!(.*/)?\\.\\.(/|$))(/|~$|~/)[^:]*)?$",
                FileRole::Ceiling => "^(?!~[^/])[^:]+$",
            },
        },
        "path": {
            "description": "relative to this file unless it starts with `/` or `~/`",
            "type": "string",
            "pattern": "^(?!~[^/])",
            "minLength": 1,
        },
        "variable": {"type": "string", "pattern": "^[^=\\s]+$"},
        "span": {
            "description": "whole numbers with the units d, h, m, s, ms, the large ones first; at most 366d",
            "type": "string",
            "pattern": "^(?=.*[1-9])([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
            "examples": ["90s", "1h30m"],
        },
        "size": {
            "description": "a whole number of bytes, or with a unit of 1000 (kB, MB, GB, TB) or 1024 (KiB, MiB, GiB, TiB)",
            "type": "string",
            "pattern": "^(?=.*[1-9])[0-9]+([kKmMgGtT]([iI]?[bB])?)?$",
            "examples": ["512MiB", "10MB"],
        },
    })
}

/// A port, from 1 to 65535.
const PORT: &str = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";

/// Returns a lookahead at the end of a text that excludes these numbers.
fn exclude(numbers: impl IntoIterator<Item = u16>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    format!("(?!({})$)", numbers.join("|"))
}

/// Returns the members of a value that is an object.
fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
