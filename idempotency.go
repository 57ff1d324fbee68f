package sojourn

// Idempotency is a caller's promise that a command with this key is the same
// command. The zero value promises nothing.
type Idempotency struct {
	Key  string
	Hash [32]byte // of the request as the contract reads it
}
