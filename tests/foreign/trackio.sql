-- made by tests/tools/trackio_runs.py with trackio 0.43.0
BEGIN TRANSACTION;
CREATE TABLE alerts (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        run_id TEXT NOT NULL,
                        timestamp TEXT NOT NULL,
                        run_name TEXT NOT NULL,
                        title TEXT NOT NULL,
                        text TEXT,
                        level TEXT NOT NULL DEFAULT 'warn',
                        step INTEGER,
                        alert_id TEXT
                    );
CREATE TABLE artifact_aliases (
                        artifact_id INTEGER NOT NULL REFERENCES artifacts(id),
                        alias TEXT NOT NULL,
                        artifact_version_id INTEGER NOT NULL REFERENCES artifact_versions(id),
                        PRIMARY KEY (artifact_id, alias)
                    );
CREATE TABLE artifact_versions (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        artifact_id INTEGER NOT NULL REFERENCES artifacts(id),
                        version INTEGER NOT NULL,
                        manifest_digest TEXT NOT NULL,
                        manifest TEXT NOT NULL,
                        metadata TEXT,
                        size_bytes INTEGER NOT NULL,
                        producer_run_id TEXT,
                        producer_run_name TEXT,
                        created_at TEXT NOT NULL,
                        UNIQUE(artifact_id, version),
                        UNIQUE(artifact_id, manifest_digest)
                    );
CREATE TABLE artifacts (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        name TEXT NOT NULL UNIQUE,
                        type TEXT NOT NULL,
                        description TEXT,
                        created_at TEXT NOT NULL
                    );
CREATE TABLE configs (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        run_id TEXT NOT NULL,
                        run_name TEXT NOT NULL,
                        config TEXT NOT NULL,
                        created_at TEXT NOT NULL,
                        UNIQUE(run_id)
                    );
INSERT INTO "configs" VALUES(1,'06d429211d1c4b7f9546e1b393b91d2f','trl',X'7B225F557365726E616D65223A6E756C6C2C225F43726561746564223A22323032362D31312D32395432303A34393A34372E3938353130332B30303A3030222C225F47726F7570223A6E756C6C2C226C6561726E696E675F72617465223A31652D362C226E756D5F67656E65726174696F6E73223A322C2262657461223A302E302C2273656564223A372C225F6E616D655F6F725F70617468223A226F72672F6D6F64656C222C22616C6C6F775F76616C5F6368616E6765223A747275657D','2026-11-29T20:49:48.105792+00:00');
INSERT INTO "configs" VALUES(2,'ad90edfe95d04397b63d3ad05b4e0f7e','verl',X'7B22747261696E6572223A7B22746F74616C5F65706F636873223A317D2C225F557365726E616D65223A6E756C6C2C225F43726561746564223A22323032362D31312D32395432303A34393A34382E3135323733372B30303A3030222C225F47726F7570223A6E756C6C7D','2026-11-29T20:49:48.183640+00:00');
CREATE TABLE external_run_artifact_links (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        run_id TEXT,
                        run_name TEXT,
                        source_project TEXT NOT NULL,
                        source_version_id INTEGER NOT NULL,
                        source_artifact TEXT NOT NULL,
                        source_type TEXT NOT NULL,
                        source_version INTEGER NOT NULL,
                        source_size_bytes INTEGER NOT NULL,
                        direction TEXT NOT NULL CHECK(direction IN ('input', 'output')),
                        created_at TEXT NOT NULL
                    );
CREATE TABLE metrics (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        run_id TEXT NOT NULL,
                        timestamp TEXT NOT NULL,
                        run_name TEXT NOT NULL,
                        step INTEGER NOT NULL,
                        metrics TEXT NOT NULL
                    , log_id TEXT, space_id TEXT);
INSERT INTO "metrics" VALUES(1,'06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',1,X'7B7D','10362100866d430a9cabf87a706cae7e',NULL);
INSERT INTO "metrics" VALUES(2,'06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',2,X'7B22747261696E2F6C6F7373223A302E32352C22747261696E2F726577617264223A312E32352C22747261696E2F6B6C223A224E614E222C22747261696E2F676C6F62616C5F73746570223A317D','c286bfd90c034c1f8881511f83967ae6',NULL);
INSERT INTO "metrics" VALUES(3,'06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',2,X'7B7D','9bcd8ecca1f840b3bae422d4d187826e',NULL);
INSERT INTO "metrics" VALUES(4,'06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',3,X'7B22747261696E2F6C6F7373223A302E3132352C22747261696E2F676C6F62616C5F73746570223A327D','ea2bf1709cac48e88f5f6ac3933b1fa3',NULL);
INSERT INTO "metrics" VALUES(5,'06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',4,X'7B226576616C2F726577617264223A312E302C22747261696E2F676C6F62616C5F73746570223A327D','bdf32fe9be1d40d3ab0dc9c585f93bea',NULL);
INSERT INTO "metrics" VALUES(6,'ad90edfe95d04397b63d3ad05b4e0f7e','2026-11-29T20:49:48.162345+00:00','verl',10,X'7B7D','fba0540089164997a718fc6cc83b8056',NULL);
INSERT INTO "metrics" VALUES(7,'ad90edfe95d04397b63d3ad05b4e0f7e','2026-11-29T20:49:48.162345+00:00','verl',10,X'7B226372697469632F73636F72652F6D65616E223A302E352C226163746F722F6B6C5F6C6F7373223A302E30317D','513f8b325be94d5ead30e55a90464b48',NULL);
CREATE TABLE pending_uploads (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        space_id TEXT NOT NULL,
                        run_id TEXT,
                        run_name TEXT,
                        step INTEGER,
                        file_path TEXT NOT NULL,
                        relative_path TEXT,
                        created_at TEXT NOT NULL
                    , kind TEXT NOT NULL DEFAULT 'media', digest TEXT);
CREATE TABLE project_metadata (
                        key TEXT PRIMARY KEY,
                        value TEXT NOT NULL
                    );
CREATE TABLE run_artifact_links (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        run_id TEXT,
                        run_name TEXT,
                        run_project TEXT,
                        artifact_version_id INTEGER NOT NULL REFERENCES artifact_versions(id),
                        direction TEXT NOT NULL CHECK(direction IN ('input', 'output')),
                        created_at TEXT NOT NULL
                    );
CREATE TABLE system_metrics (
                        id INTEGER PRIMARY KEY AUTOINCREMENT,
                        run_id TEXT NOT NULL,
                        timestamp TEXT NOT NULL,
                        run_name TEXT NOT NULL,
                        metrics TEXT NOT NULL
                    , log_id TEXT, space_id TEXT);
CREATE TABLE traces (
                        id TEXT PRIMARY KEY,
                        run_id TEXT NOT NULL,
                        timestamp TEXT NOT NULL,
                        run_name TEXT NOT NULL,
                        step INTEGER NOT NULL,
                        key TEXT NOT NULL,
                        trace_index INTEGER,
                        messages TEXT NOT NULL,
                        metadata TEXT NOT NULL,
                        search_text TEXT NOT NULL,
                        log_id TEXT,
                        space_id TEXT,
                        spans TEXT NOT NULL DEFAULT '[]'
                    );
INSERT INTO "traces" VALUES('06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:0','06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',1,'rollouts',0,X'5B7B22726F6C65223A2273797374656D222C22636F6E74656E74223A22416E7377657220776974682061206E756D6265722E227D2C7B22726F6C65223A2275736572222C22636F6E74656E74223A2232202B2032203D203F227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A2234227D5D',X'7B22726577617264223A312E352C227265776172645F737464223A302E352C22726577617264732F7269676874223A312E302C22726577617264732F73686F7274223A302E352C22616476616E74616765223A302E37352C2267726F75705F6964223A322C226D6F64656C5F76657273696F6E223A302C2270726F6D70745F746F6B656E73223A392C22636F6D706C6574696F6E5F746F6B656E73223A347D','06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:0 rollouts system answer with a number. user 2 + 2 = ? assistant 4 1.5 0.5 1.0 0.5 0.75 2 0 9 4','10362100866d430a9cabf87a706cae7e',NULL,X'5B5D');
INSERT INTO "traces" VALUES('06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:1','06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',1,'rollouts',1,X'5B7B22726F6C65223A2273797374656D222C22636F6E74656E74223A22416E7377657220776974682061206E756D6265722E227D2C7B22726F6C65223A2275736572222C22636F6E74656E74223A2232202B2032203D203F227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A2235227D5D',X'7B22726577617264223A302E352C227265776172645F737464223A302E352C22726577617264732F7269676874223A302E302C22726577617264732F73686F7274223A302E352C22616476616E74616765223A2D302E37352C2267726F75705F6964223A322C226D6F64656C5F76657273696F6E223A302C2270726F6D70745F746F6B656E73223A392C22636F6D706C6574696F6E5F746F6B656E73223A347D','06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:1 rollouts system answer with a number. user 2 + 2 = ? assistant 5 0.5 0.5 0.0 0.5 -0.75 2 0 9 4','10362100866d430a9cabf87a706cae7e',NULL,X'5B5D');
INSERT INTO "traces" VALUES('06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:2','06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',1,'rollouts',2,X'5B7B22726F6C65223A2273797374656D222C22636F6E74656E74223A22416E7377657220776974682061206E756D6265722E227D2C7B22726F6C65223A2275736572222C22636F6E74656E74223A2233202B2032203D203F227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A2235227D5D',X'7B22726577617264223A312E352C227265776172645F737464223A302E302C22726577617264732F7269676874223A312E302C22726577617264732F73686F7274223A302E352C22616476616E74616765223A302E302C2267726F75705F6964223A332C226D6F64656C5F76657273696F6E223A302C2270726F6D70745F746F6B656E73223A392C22636F6D706C6574696F6E5F746F6B656E73223A347D','06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:2 rollouts system answer with a number. user 3 + 2 = ? assistant 5 1.5 0.0 1.0 0.5 0.0 3 0 9 4','10362100866d430a9cabf87a706cae7e',NULL,X'5B5D');
INSERT INTO "traces" VALUES('06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:3','06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',1,'rollouts',3,X'5B7B22726F6C65223A2273797374656D222C22636F6E74656E74223A22416E7377657220776974682061206E756D6265722E227D2C7B22726F6C65223A2275736572222C22636F6E74656E74223A2233202B2032203D203F227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A2266697665227D5D',X'7B22726577617264223A312E352C227265776172645F737464223A302E302C22726577617264732F7269676874223A312E302C22726577617264732F73686F7274223A302E352C22616476616E74616765223A302E302C2267726F75705F6964223A332C226D6F64656C5F76657273696F6E223A302C2270726F6D70745F746F6B656E73223A392C22636F6D706C6574696F6E5F746F6B656E73223A347D','06d429211d1c4b7f9546e1b393b91d2f:10362100866d430a9cabf87a706cae7e:rollouts:3 rollouts system answer with a number. user 3 + 2 = ? assistant five 1.5 0.0 1.0 0.5 0.0 3 0 9 4','10362100866d430a9cabf87a706cae7e',NULL,X'5B5D');
INSERT INTO "traces" VALUES('06d429211d1c4b7f9546e1b393b91d2f:9bcd8ecca1f840b3bae422d4d187826e:rollouts:0','06d429211d1c4b7f9546e1b393b91d2f','2026-11-29T20:49:47.990985+00:00','trl',2,'rollouts',0,X'5B7B22726F6C65223A2275736572222C22636F6E74656E74223A2235202B2032203D203F227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A22222C22746F6F6C5F63616C6C73223A5B7B2274797065223A2266756E6374696F6E222C2266756E6374696F6E223A7B226E616D65223A22616464222C22617267756D656E7473223A7B2261223A352C2262223A327D7D7D5D7D2C7B22726F6C65223A22746F6F6C222C22636F6E74656E74223A2237222C226E616D65223A22616464227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A22497420697320372E227D5D',X'7B22726577617264223A312E302C227265776172645F737464223A302E302C22616476616E74616765223A302E302C22726577617264732F7269676874223A224E614E222C2267726F75705F6964223A342C226D6F64656C5F76657273696F6E223A312C2270726F6D70745F746F6B656E73223A392C22636F6D706C6574696F6E5F746F6B656E73223A347D','06d429211d1c4b7f9546e1b393b91d2f:9bcd8ecca1f840b3bae422d4d187826e:rollouts:0 rollouts user 5 + 2 = ? assistant  function add 5 2 tool 7 add assistant it is 7. 1.0 0.0 0.0 nan 4 1 9 4','9bcd8ecca1f840b3bae422d4d187826e',NULL,X'5B5D');
INSERT INTO "traces" VALUES('ad90edfe95d04397b63d3ad05b4e0f7e:fba0540089164997a718fc6cc83b8056:val/generations:0','ad90edfe95d04397b63d3ad05b4e0f7e','2026-11-29T20:49:48.162345+00:00','verl',10,'val/generations',0,X'5B7B22726F6C65223A2275736572222C22636F6E74656E74223A2231202B2031203D203F227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A2232227D5D',X'7B22736F75726365223A2276616C69646174696F6E5F67656E65726174696F6E73222C2273616D706C655F696E646578223A302C2273636F7265223A312E307D','ad90edfe95d04397b63d3ad05b4e0f7e:fba0540089164997a718fc6cc83b8056:val/generations:0 val/generations user 1 + 1 = ? assistant 2 validation_generations 0 1.0','fba0540089164997a718fc6cc83b8056',NULL,X'5B5D');
INSERT INTO "traces" VALUES('ad90edfe95d04397b63d3ad05b4e0f7e:fba0540089164997a718fc6cc83b8056:val/generations:1','ad90edfe95d04397b63d3ad05b4e0f7e','2026-11-29T20:49:48.162345+00:00','verl',10,'val/generations',1,X'5B7B22726F6C65223A2275736572222C22636F6E74656E74223A2231202B2031203D203F227D2C7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A2233227D5D',X'7B22736F75726365223A2276616C69646174696F6E5F67656E65726174696F6E73222C2273616D706C655F696E646578223A312C2273636F7265223A302E307D','ad90edfe95d04397b63d3ad05b4e0f7e:fba0540089164997a718fc6cc83b8056:val/generations:1 val/generations user 1 + 1 = ? assistant 3 validation_generations 1 0.0','fba0540089164997a718fc6cc83b8056',NULL,X'5B5D');
CREATE INDEX idx_run_artifact_links_run
                    ON run_artifact_links(run_id, run_name)
                    ;
CREATE INDEX idx_run_artifact_links_name
                    ON run_artifact_links(run_name, run_id)
                    ;
CREATE INDEX idx_run_artifact_links_version
                    ON run_artifact_links(artifact_version_id)
                    ;
CREATE INDEX idx_run_artifact_links_project_run
                    ON run_artifact_links(run_project, run_id, run_name);
CREATE INDEX idx_external_artifact_links_run
                    ON external_run_artifact_links(run_id, run_name);
CREATE UNIQUE INDEX idx_external_artifact_links_unique
                    ON external_run_artifact_links(
                        COALESCE(run_id, ''), COALESCE(run_name, ''),
                        source_project, source_version_id, direction
                    );
CREATE INDEX idx_pending_uploads_kind
                    ON pending_uploads(kind)
                    ;
CREATE INDEX idx_metrics_run_step
                    ON metrics(run_id, step)
                    ;
CREATE INDEX idx_metrics_run_timestamp
                    ON metrics(run_id, timestamp)
                    ;
CREATE INDEX idx_configs_run_name
                    ON configs(run_name)
                    ;
CREATE INDEX idx_system_metrics_run_timestamp
                    ON system_metrics(run_id, timestamp)
                    ;
CREATE INDEX idx_traces_run_step
                    ON traces(run_id, step)
                    ;
CREATE INDEX idx_traces_run_timestamp
                    ON traces(run_id, timestamp)
                    ;
CREATE INDEX idx_traces_search
                    ON traces(search_text)
                    ;
CREATE INDEX idx_alerts_run
                    ON alerts(run_id)
                    ;
CREATE INDEX idx_alerts_timestamp
                    ON alerts(timestamp)
                    ;
CREATE UNIQUE INDEX idx_alerts_alert_id
                    ON alerts(alert_id) WHERE alert_id IS NOT NULL
                    ;
CREATE UNIQUE INDEX idx_metrics_log_id
                        ON metrics(log_id) WHERE log_id IS NOT NULL;
CREATE INDEX idx_metrics_pending
                        ON metrics(space_id) WHERE space_id IS NOT NULL;
CREATE UNIQUE INDEX idx_system_metrics_log_id
                        ON system_metrics(log_id) WHERE log_id IS NOT NULL;
CREATE INDEX idx_system_metrics_pending
                        ON system_metrics(space_id) WHERE space_id IS NOT NULL;
CREATE INDEX idx_metrics_run_record
                        ON metrics(run_id, run_name, timestamp);
CREATE UNIQUE INDEX idx_run_artifact_links_unique
                    ON run_artifact_links(
                        COALESCE(run_project, ''), COALESCE(run_id, ''),
                        COALESCE(run_name, ''), artifact_version_id, direction
                    );
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('metrics',7);
INSERT INTO "sqlite_sequence" VALUES('configs',2);
COMMIT;
PRAGMA user_version = 2;
