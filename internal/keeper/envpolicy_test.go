package keeper

import (
	"maps"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/link"
)

func TestEnvPolicy(t *testing.T) {
	own := []string{"PATH=/bin", "HOME=/h", "EDITOR=vi", "API_KEY=k", "Aws_Secret_Id=s", "EMPTY="}
	env := map[string]string{"OVER": "1", "EDITOR": "mine"}
	for name, tt := range map[string]struct {
		policy *link.EnvPolicy
		want   map[string]string
	}{
		"no policy": {nil, env},
		"none":      {&link.EnvPolicy{Inherit: "none", Set: map[string]string{"S": "1", "OVER": "0"}}, map[string]string{"S": "1", "OVER": "1", "EDITOR": "mine"}},
		"core":      {&link.EnvPolicy{Inherit: "core"}, map[string]string{"PATH": "/bin", "HOME": "/h", "OVER": "1", "EDITOR": "mine"}},
		"all":       {&link.EnvPolicy{Inherit: "all", Exclude: []string{"h?me", "["}}, map[string]string{"PATH": "/bin", "EMPTY": "", "OVER": "1", "EDITOR": "mine"}},
		"secrets too": {
			&link.EnvPolicy{Inherit: "all", IgnoreDefaultExcludes: true, IncludeOnly: []string{"a*"}},
			map[string]string{"API_KEY": "k", "Aws_Secret_Id": "s", "OVER": "1", "EDITOR": "mine"},
		},
	} {
		got, err := inherit(tt.policy, own, env)
		if err != nil || !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tt.want)
		}
	}
	if _, err := inherit(&link.EnvPolicy{Inherit: "some"}, own, env); err == nil {
		t.Error("an unknown policy was accepted")
	}
}
