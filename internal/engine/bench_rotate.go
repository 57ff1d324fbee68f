package engine

import (
	"context"

	"github.com/sojourn-dev/sojourn"
)

// rotate takes the rotation under way one step further.
func (b *bench) rotate(ctx context.Context, f sojourn.Facts) (look, error) { return look{}, nil }
