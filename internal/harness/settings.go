package harness

// codexConfig is Codex's config.toml. The sandbox is the wall, so that its own is
// off. Its chat completions are gone, and it would try web sockets first.
const codexConfig = `model = "{{model}}"
model_provider = "sojourn"
approval_policy = "{{approval}}"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.sojourn]
name = "Sojourn"
base_url = "{{model_url}}"
env_key = "SOJOURN_MODEL_KEY"
wire_api = "responses"
supports_websockets = false
request_max_retries = 2
stream_max_retries = 2

[projects."{{workspace}}"]
trust_level = "trusted"
`

// opencodeConfig is OpenCode's whole configuration, given in a variable so that none
// in the workspace goes over it.
const opencodeConfig = `{"autoupdate":false,"share":"disabled",` +
	`"model":"sojourn/{{model}}","small_model":"sojourn/{{model}}","enabled_providers":["sojourn"],` +
	`"provider":{"sojourn":{"npm":"@ai-sdk/openai-compatible","name":"Sojourn",` +
	`"options":{"baseURL":"{{model_url}}","apiKey":"{{token}}"},` +
	`"models":{"{{model}}":{"name":"{{model}}","limit":{"context":128000,"output":8192}}}}},` +
	`"permission":{"edit":"{{approval}}","bash":"{{approval}}"}}`

const qwenSettings = `{"security":{"auth":{"selectedType":"openai"},"folderTrust":{"enabled":false}},` +
	`"privacy":{"usageStatisticsEnabled":false},"telemetry":{"enabled":false},` +
	`"general":{"enableAutoUpdate":false},"model":{"name":"{{model}}"}}`

const geminiSettings = `{"security":{"auth":{"selectedType":"gemini-api-key"},"folderTrust":{"enabled":false}},` +
	`"privacy":{"usageStatisticsEnabled":false},"telemetry":{"enabled":false},` +
	`"general":{"enableAutoUpdate":false}}`
