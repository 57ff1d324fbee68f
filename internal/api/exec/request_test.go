package exec

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// openSession is a session that takes execs.
func openSession() sojourn.Facts {
	return sojourn.Facts{Session: sojourn.Session{
		ID: "s", Project: "p", Contract: sojourn.ContractExec, Runtime: sojourn.RuntimeNone, State: sojourn.SessionOpen,
	}}
}

func TestScopesAreNamed(t *testing.T) {
	e := &stub{facts: openSession()}
	reader := http.Header{"Authorization": {"ApiKey reader"}}
	if res := (call{"GET", sessionsPath + "/s", "", reader}).to(e); res.Code != 200 {
		t.Errorf("reading with sandbox:read: %d %s", res.Code, res.Body)
	}
	for _, c := range []call{
		{"POST", sessionsPath, `{}`, reader},
		{"POST", sessionsPath + "/s/exec", `{"command":["true"]}`, reader},
		{"POST", sessionsPath + "/s/heartbeat", ``, reader},
		{"DELETE", sessionsPath + "/s", ``, reader},
	} {
		body := refusal(t, c.to(e), 403)
		if body.Code != "FORBIDDEN" || body.Details["scope"] != "sandbox:write" || !strings.Contains(body.Error, "sandbox:write") {
			t.Errorf("%s %s: %+v, want the missing scope by name", c.method, c.path, body)
		}
	}
	res := call{"GET", sessionsPath, "", http.Header{"Authorization": {"Bearer nobody"}}}.to(e)
	if body := refusal(t, res, 401); body.Code != "UNAUTHENTICATED" || res.Header().Get("WWW-Authenticate") != `ApiKey realm="sojourn"` {
		t.Errorf("a bad key: %+v %v", body, res.Header())
	}
	if res := (call{"GET", sessionsPath + "/s", "", http.Header{"X-Api-Key": {"reader"}}}).to(e); res.Code != 200 {
		t.Errorf("with X-API-Key: %d %s", res.Code, res.Body)
	}
}

func TestSeedCreatesWhatItSays(t *testing.T) {
	const seed = `{
"name": "backlog-triage",
"budget": {"costCapCents": 500, "iterationLimit": 200, "durationLimitSeconds": 7200},
"rotation": {"preRotateBufferSeconds": 30, "includeProcessState": false},
"sandbox": {"cpus": 2, "memory": "4Gi", "isolation": "gvisor", "timeoutSeconds": 3600},
"clientId": "worker-7"
}`
	snake := strings.NewReplacer("costCapCents", "cost_cap_cents", "iterationLimit", "iteration_limit", "durationLimitSeconds", "duration_limit_seconds",
		"preRotateBufferSeconds", "pre_rotate_buffer_seconds", "includeProcessState", "include_process_state",
		"timeoutSeconds", "timeout_seconds", "clientId", "client_id").Replace(seed)
	for _, body := range []string{seed, snake} {
		e := &stub{facts: openSession()}
		reading[SessionBody](t, call{"POST", sessionsPath, body, nil}.to(e), 201)
		c := e.created
		if c.Title != "backlog-triage" || c.Runtime != sojourn.RuntimeNone || c.Contract != sojourn.ContractExec || c.Presence.Client != "worker-7" {
			t.Errorf("created %+v", c)
		}
		if want := (sojourn.Limits{Cost: 500 * sojourn.Cent, Iterations: 200, Duration: 2 * time.Hour}); c.Limits != want {
			t.Errorf("limits %+v, want %+v", c.Limits, want)
		}
		if c.Rotation.Buffer != 30*time.Second || c.Rotation.Processes {
			t.Errorf("rotation %+v", c.Rotation)
		}
		if l := c.Sandbox.Limits; l.MilliCPUs != 2000 || l.MemoryBytes != 4<<30 || c.Sandbox.Isolation != "gvisor" || c.Sandbox.Timeout != time.Hour {
			t.Errorf("sandbox %+v", c.Sandbox)
		}
	}
}

func TestACreateNeedsNoBody(t *testing.T) {
	for _, body := range []string{"", "{}", `{"budget":{"costCapCents":null,"iterationLimit":null,"durationLimitSeconds":null}}`, `{"budget":{}}`} {
		e := &stub{facts: openSession()}
		reading[SessionBody](t, call{"POST", sessionsPath, body, nil}.to(e), 201)
		if e.created.Limits != (sojourn.Limits{}) {
			t.Errorf("%s: limits %+v, want none", body, e.created.Limits)
		}
	}
}

// A limit that is not a whole number above zero is refused, never no limit.
func TestOddLimitsAreRefused(t *testing.T) {
	e := &stub{facts: openSession()}
	for _, field := range []string{"costCapCents", "iterationLimit", "durationLimitSeconds"} {
		for _, value := range []string{"0", "-1", "1.5", "1e300", "9223372036854775807", `"5"`, "true", "[]", "{}"} {
			body := refusal(t, call{"POST", sessionsPath, `{"budget":{"` + field + `":` + value + `}}`, nil}.to(e), 400)
			if body.Code != "INVALID_REQUEST" || !strings.Contains(body.Error, field) {
				t.Errorf("%s %s: %+v, want the field named", field, value, body)
			}
			refusal(t, call{"PATCH", sessionsPath + "/s", `{"budget":{"` + field + `":` + value + `}}`, nil}.to(e), 400)
		}
	}
}

func TestBadRequestsAre400(t *testing.T) {
	const session = sessionsPath + "/s"
	e := &stub{facts: openSession()}
	for name, c := range map[string]struct {
		call
		says string
	}{
		"unknown field":     {call{"POST", sessionsPath, `{"nam":"x"}`, nil}, "nam"},
		"unknown nested":    {call{"POST", sessionsPath, `{"budget":{"cost_cap":1}}`, nil}, "cost_cap"},
		"two spellings":     {call{"POST", sessionsPath, `{"clientId":"a","client_id":"a"}`, nil}, "clientId"},
		"unknown parameter": {call{"GET", sessionsPath + "?state=running", "", nil}, "state"},
		"unknown status":    {call{"GET", sessionsPath + "?status=open", "", nil}, "status"},
		"limit 0":           {call{"GET", sessionsPath + "?limit=0", "", nil}, "limit"},
		"no JSON":           {call{"POST", sessionsPath, `{`, nil}, "JSON"},
		"bad memory":        {call{"POST", sessionsPath, `{"sandbox":{"memory":"4 Gi"}}`, nil}, "memory"},
		"no memory":         {call{"POST", sessionsPath, `{"sandbox":{"memory":0}}`, nil}, "memory"},
		"odd isolation":     {call{"POST", sessionsPath, `{"sandbox":{"isolation":"jail"}}`, nil}, "isolation"},
		"no command":        {call{"POST", session + "/exec", `{}`, nil}, "command"},
		"command line":      {call{"POST", session + "/exec", `{"command":"ls -l"}`, nil}, `["sh", "-c"`},
		"odd argument":      {call{"POST", session + "/exec", `{"command":["a",1]}`, nil}, "command"},
		"null argument":     {call{"POST", session + "/exec", `{"command":["a",null]}`, nil}, "command"},
		"null command":      {call{"POST", session + "/exec", `{"command":null}`, nil}, "command"},
		"command and tool":  {call{"POST", session + "/exec", `{"command":["a"],"tool":"t"}`, nil}, "tool"},
		"two inputs":        {call{"POST", session + "/exec", `{"command":["a"],"stdin":"","stdinStream":true}`, nil}, "stdin"},
		"tool with stdin":   {call{"POST", session + "/exec", `{"tool":"t","stdin":"x"}`, nil}, "stdin"},
		"bad base64":        {call{"POST", session + "/exec", `{"command":["a"],"stdinBase64":"%"}`, nil}, "stdinBase64"},
		"999 ms":            {call{"POST", session + "/exec", `{"command":["a"],"timeoutMs":999}`, nil}, "timeoutMs"},
		"600001 ms":         {call{"POST", session + "/exec", `{"command":["a"],"timeout_ms":600001}`, nil}, "timeoutMs"},
		"half a ms":         {call{"POST", session + "/exec", `{"command":["a"],"timeoutMs":1000.5}`, nil}, "timeoutMs"},
		"size of no tty":    {call{"POST", session + "/exec", `{"command":["a"],"rows":2,"cols":2}`, nil}, "rows"},
		"no decision":       {call{"POST", session + "/approve", `{}`, nil}, "decision"},
		"odd decision":      {call{"POST", session + "/approve", `{"decision":"maybe"}`, nil}, "decision"},
		"no client":         {call{"POST", sessionsPath + "/reattach", `{}`, nil}, "clientId"},
		"context spellings": {call{"POST", session + "/context", `{"workingDir":"/workspace","working_dir":"/"}`, nil}, "workingDir"},
		"context array":     {call{"POST", session + "/context", `[]`, nil}, "object"},
		"odd event type":    {call{"GET", session + "/events?type=run.started,nothing", "", nil}, "nothing"},
		"odd cursor":        {call{"GET", session + "/events?after=-1", "", nil}, "cursor"},
		"wait too long":     {call{"GET", session + "/executions/x?waitMs=60001", "", nil}, "waitMs"},
		"signal and kill":   {call{"POST", session + "/executions/x/cancel", `{"signal":"SIGINT","kill":true}`, nil}, "kill"},
		"empty terminal":    {call{"POST", session + "/executions/x/resize", `{"rows":0,"cols":1}`, nil}, "rows"},
		"odd stream":        {call{"GET", session + "/executions/x/output?stream=stdin", "", nil}, "stream"},
	} {
		body := refusal(t, c.call.to(e), 400)
		if !strings.Contains(body.Error, c.says) || !strings.HasPrefix(body.Code, "INVALID_") || body.RequestID == "" {
			t.Errorf("%s: %+v, want it to say %s", name, body, c.says)
		}
	}
}

func TestUnknownPathsAreInTheEnvelope(t *testing.T) {
	if body := refusal(t, call{"GET", "/api/v1/nothing", "", nil}.to(&stub{}), 404); body.Code != "NOT_FOUND" {
		t.Errorf("an unknown path: %+v", body)
	}
	res := call{"PUT", sessionsPath + "/s/exec", "{}", nil}.to(&stub{})
	if body := refusal(t, res, 405); body.Code != "METHOD_NOT_ALLOWED" || res.Header().Get("Allow") != "POST" {
		t.Errorf("an unknown method: %+v %v", body, res.Header())
	}
}

func TestSizesTakeEveryForm(t *testing.T) {
	for text, want := range map[string]int64{
		`"4Gi"`: 4 << 30, `"512Mi"`: 512 << 20, `"1G"`: 1e9, `"1.5Gi"`: 3 << 29, `1073741824`: 1 << 30, `"1073741824"`: 1 << 30,
		`"64M"`: 64e6, `"100k"`: 1e5, `"7B"`: 7, `"1Ti"`: 1 << 40,
		`"0"`: 0, `0`: 0, `-1`: 0, `"Gi"`: 0, `"1e9"`: 0, `"0x10"`: 0, `"NaN"`: 0, `"9999999999Ti"`: 0, `""`: 0, `null`: 0, `{}`: 0, `"4gi"`: 0, `"1.2.3Gi"`: 0, `"99999999999999999999"`: 0,
	} {
		var s Size
		if err := json.Unmarshal([]byte(text), &s); err != nil || s.bad != (want == 0) || !s.bad && s.bytes != want {
			t.Errorf("%s is %d (refused: %v, %v), want %d", text, s.bytes, s.bad, err, want)
		}
	}
	for bytes, want := range map[int64]string{4 << 30: `"4Gi"`, 3 << 29: `"1536Mi"`, 1e9: `"1000000000"`, 1 << 40: `"1Ti"`, 5: `"5"`} {
		if got, err := json.Marshal(Size{bytes: bytes}); err != nil || string(got) != want {
			t.Errorf("%d is written %s, want %s", bytes, got, want)
		}
	}
}

func TestAnExecIsStartedAsAsked(t *testing.T) {
	args := []string{"", "a b", "é", "$HOME", "--", "\t\"\\"}
	given, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	e := &stub{facts: openSession(), exec: sojourn.Exec{ID: "x", State: sojourn.ExecRunning, Spec: sojourn.ExecSpec{Detached: true}}}
	body := `{"command":` + string(given) + `,"working_dir":"src","timeoutMs":120000,"env":{"A_B":"1","aB":"2"},"stdinBase64":"AAH/",` +
		`"detached":true,"tty":true,"rows":40,"cols":132,"graceMs":0,"requireApproval":true}`
	if res := (call{"POST", sessionsPath + "/s/exec", body, nil}).to(e); res.Code != 202 || res.Header().Get("X-Execution-Id") != "x" {
		t.Fatalf("%d %s %v", res.Code, res.Body, res.Header())
	}
	got := e.asked.Spec
	if strconv.Quote(strings.Join(got.Argv, "\x00")) != strconv.Quote(strings.Join(args, "\x00")) || got.Dir != "src" || got.Timeout != 2*time.Minute || got.Grace != 0 ||
		!maps.Equal(got.Env, map[string]string{"A_B": "1", "aB": "2"}) || !got.Detached || !got.TTY || got.Rows != 40 || got.Cols != 132 || !got.Ask {
		t.Errorf("started %+v", got)
	}
	if got.Stdin != sojourn.StdinGiven || string(e.asked.Input) != "\x00\x01\xff" {
		t.Errorf("it reads %q (%s)", e.asked.Input, got.Stdin)
	}
}

func TestTimeoutsHaveDefaults(t *testing.T) {
	for body, want := range map[string]time.Duration{
		`{"command":["a"]}`:                                      time.Minute,
		`{"command":["a"],"detached":true}`:                      0,
		`{"command":["a"],"detached":true,"timeoutMs":1000}`:     time.Second,
		`{"command":["a"],"timeoutMs":600000}`:                   10 * time.Minute,
		`{"tool":"t","input":{"some_key":1},"timeoutMs":600000}`: 10 * time.Minute,
	} {
		e := &stub{facts: openSession(), exec: sojourn.Exec{ID: "x", State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(0)}}}
		reading[Reply](t, call{"POST", sessionsPath + "/s/exec", body, nil}.to(e), 200)
		if e.asked.Spec.Timeout != want || e.asked.Spec.Grace != sojourn.DefaultExecGrace {
			t.Errorf("%s: timeout %v, grace %v; want %v", body, e.asked.Spec.Timeout, e.asked.Spec.Grace, want)
		}
		if e.asked.Tool != "" && string(e.asked.ToolInput) != `{"some_key":1}` {
			t.Errorf("%s: the tool reads %s", body, e.asked.ToolInput)
		}
	}
}

func TestAContextIsAMergePatch(t *testing.T) {
	for body, want := range map[string]string{
		`{"cursor":"batch-7","processed":412}`:               `{"Custom":{"cursor":"batch-7","processed":412}}`,
		`{"working_dir":"src","env":{"A_b":"1","c":null}}`:   `{"Dir":"src","Env":{"A_b":"1","c":null},"Custom":{}}`,
		`{"workingDir":null,"env":null,"custom_state":null}`: `{"Dir":"","NoEnv":true,"NoCustom":true,"Custom":{}}`,
		`{"customState":{"some_key":{"a_b":null}},"x":null}`: `{"Custom":{"some_key":{"a_b":null},"x":null}}`,
	} {
		e := &stub{facts: openSession()}
		reading[ContextChangedBody](t, call{"POST", sessionsPath + "/s/context", body, nil}.to(e), 200)
		var w sojourn.CarryoverPatch
		if err := json.Unmarshal([]byte(want), &w); err != nil {
			t.Fatal(err)
		}
		got, _ := json.Marshal(e.patch) // both are plain data
		if text, _ := json.Marshal(w); string(got) != string(text) {
			t.Errorf("%s is %s, want %s", body, got, text)
		}
	}
	for _, body := range []string{`{"env":{"a":1}}`, `{"env":[]}`, `{"workingDir":5}`, `{"customState":[]}`, `{"customState":{"a":1},"a":2}`} {
		refusal(t, call{"POST", sessionsPath + "/s/context", body, nil}.to(&stub{facts: openSession()}), 400)
	}
}

func TestALimitThatIsNotNamedStays(t *testing.T) {
	f := openSession()
	f.Session.Budget.Limits = sojourn.Limits{Cost: 5 * sojourn.Cent, Iterations: 7, Duration: time.Minute}
	for body, want := range map[string]sojourn.Limits{
		`{"budget":{"costCapCents":10}}`:                             {Cost: 10 * sojourn.Cent, Iterations: 7, Duration: time.Minute},
		`{"budget":{"iteration_limit":null}}`:                        {Cost: 5 * sojourn.Cent, Duration: time.Minute},
		`{"budget":{"durationLimitSeconds":90,"costCapCents":null}}`: {Iterations: 7, Duration: 90 * time.Second},
		`{"budget":{}}`: f.Session.Budget.Limits,
	} {
		e := &stub{facts: f}
		reading[SessionBody](t, call{"PATCH", sessionsPath + "/s", body, nil}.to(e), 200)
		if e.limits != want {
			t.Errorf("%s leaves %+v, want %+v", body, e.limits, want)
		}
	}
}

func TestListsSelectByStatus(t *testing.T) {
	for status, want := range map[string]struct {
		state    sojourn.SessionState
		reason   sojourn.CloseReason
		rotating string
	}{
		"pending": {state: sojourn.SessionNew}, "paused": {state: sojourn.SessionPaused},
		"running": {sojourn.SessionOpen, "", "false"}, "rotating": {sojourn.SessionOpen, "", "true"},
		"completed": {sojourn.SessionClosed, sojourn.CloseCompleted, ""}, "failed": {sojourn.SessionClosed, sojourn.CloseFailed, ""},
		"cancelled": {sojourn.SessionClosed, sojourn.CloseCancelled, ""},
	} {
		e := &stub{facts: openSession()}
		list := reading[SessionsBody](t, call{"GET", sessionsPath + "?limit=1&offset=1&status=" + status, "", nil}.to(e), 200)
		var rotating string
		if e.query.Rotating != nil {
			rotating = strconv.FormatBool(*e.query.Rotating)
		}
		if e.query.State != want.state || e.query.CloseReason != want.reason || rotating != want.rotating || e.query.Limit != 1 || e.query.Offset != 1 {
			t.Errorf("%s asks for %+v", status, e.query)
		}
		if list.Total != 3 || list.Limit != 1 || list.Offset != 1 || !list.HasMore || len(list.Sessions) != 1 {
			t.Errorf("%s: %+v", status, list)
		}
	}
}

func TestErrorsAreInTheContractsWords(t *testing.T) {
	e := &stub{facts: openSession()}
	for want, err := range map[string]*sojourn.Error{
		`"A session that is pending runs nothing." pending`: {
			Code: sojourn.CodeInvalidState, Message: "A session that is new runs nothing.", Details: map[string]string{"state": "new"},
		},
		`"A session that is running cannot be deleted." running`: {
			Code: sojourn.CodeInvalidState, Message: "A session that is open cannot be deleted.", Details: map[string]string{"state": "open"},
		},
		`"A session that is paused runs nothing." paused`: {
			Code: sojourn.CodeInvalidState, Message: "A session that is paused runs nothing.", Details: map[string]string{"state": "paused"},
		},
		`"sandbox.memory: at least 67108864." <nil>`: {Code: sojourn.CodeInvalid, Message: "sandbox.limits.memoryBytes: at least 67108864."},
		`"The approval was resolved with another decision." <nil>`: {
			Code: sojourn.CodeInteractionAnswered, Message: "The interaction already has another answer.",
		},
		`"The approval can no longer be resolved (cancelled)." <nil>`: {
			Code: sojourn.CodeInteractionExpired, Message: "The interaction can no longer be answered (cancelled).", Details: map[string]string{"reason": "cancelled"},
		},
		`"There is no such approval." <nil>`: {Code: sojourn.CodeNotFound, Message: "There is no such interaction."},
	} {
		e.err = err
		res := call{"GET", sessionsPath + "/s", "", nil}.to(e)
		body := refusal(t, res, res.Code)
		if got := fmt.Sprintf("%q %v", body.Error, body.Details["state"]); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestEventsAreInTheContractsWords(t *testing.T) {
	for _, c := range []struct {
		of         sojourn.EventType
		data, want string
	}{
		{sojourn.EventSessionCreated, `{"title":"t","runtime":"none"}`, `{"name":"t"}`},
		{sojourn.EventCheckpointSealed, `{"checkpointId":"c","conversation":"exact","workspace":"exact"}`, `{"checkpointId":"c","workspace":"exact"}`},
		{sojourn.EventCheckpointFailed, `{"conversation":"exact","conversationReason":"x","workspaceReason":"y"}`, `{"workspaceReason":"y"}`},
	} {
		if got := payload(sojourn.Event{Type: c.of, Data: json.RawMessage(c.data)}, false); string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.of, got, c.want)
		}
	}
}
