package exec_test

import (
	"flag"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/api/apitest"
)

func TestContract(t *testing.T) {
	apitest.Run(t, "testdata/contract", flag.Lookup("update").Value.String() == "true")
}
