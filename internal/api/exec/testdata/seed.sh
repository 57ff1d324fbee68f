create() {
curl --request POST "https://api.sandbox.stateset.com/api/v1/agent/sessions" \
--header "Authorization: ApiKey $STATESET_SANDBOX_API_KEY" \
--header "Content-Type: application/json" \
--data '{
"name": "backlog-triage",
"budget": {
"costCapCents": 500,
"iterationLimit": 200,
"durationLimitSeconds": 7200
},
"rotation": {
"preRotateBufferSeconds": 30,
"includeProcessState": false
},
"sandbox": {
"cpus": 2,
"memory": "4Gi",
"isolation": "gvisor",
"timeoutSeconds": 3600
},
"clientId": "worker-7"
}'
}

run() {
curl --request POST "https://api.sandbox.stateset.com/api/v1/agent/sessions/$SESSION_ID/exec" \
--header "Authorization: ApiKey $STATESET_SANDBOX_API_KEY" \
--header "Content-Type: application/json" \
--data '{
"command": ["python3", "triage.py", "--batch", "7"],
"workingDir": "/workspace",
"timeoutMs": 120000
}'
}

context() {
# Anything the next sandbox must know goes in the session context
curl --request POST "https://api.sandbox.stateset.com/api/v1/agent/sessions/$SESSION_ID/context" \
--header "Authorization: ApiKey $STATESET_SANDBOX_API_KEY" \
--header "Content-Type: application/json" \
--data '{ "cursor": "batch-7", "processed": 412 }'
}

reattach() {
curl --request POST "https://api.sandbox.stateset.com/api/v1/agent/sessions/reattach" \
--header "Authorization: ApiKey $STATESET_SANDBOX_API_KEY" \
--header "Content-Type: application/json" \
--data '{ "clientId": "worker-7" }'
}
