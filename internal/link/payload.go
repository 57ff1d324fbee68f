package link

import (
	"encoding/binary"
	"fmt"
)

// Between two sides that both know revision 1, what is many bytes travels behind
// the JSON of its message as it is, and not as base64 inside:
//
//	1 | length of the JSON, four bytes, big-endian | JSON | payload
//
// The first byte tells it from a message without a payload, which is JSON alone.
// Whatever the payload is cut into, the JSON says how.
const (
	payloadMark = 1
	payloadHead = 1 + 4
)

// Carrier is what can arrive with a payload. Carry takes the payload after the
// JSON has been decoded, keeps it, and fails when the JSON does not account for
// all of it.
type Carrier interface {
	Carry(payload []byte) error
}

// Shipper is what can be sent with a payload. Ship takes the bytes out, so that
// what remains is JSON of a bounded size; they are not copied.
type Shipper interface {
	Ship() [][]byte
}

// splitPayload takes a message apart into its JSON and its payload, which is nil
// when it has none.
func splitPayload(data []byte) (body, payload []byte, err error) {
	if len(data) == 0 || data[0] != payloadMark {
		return data, nil, nil
	}
	if len(data) < payloadHead {
		return nil, nil, fmt.Errorf("%w: the length is cut short", ErrMalformed)
	}
	rest := data[payloadHead:]
	size := binary.BigEndian.Uint32(data[1:payloadHead])
	if uint64(size) > uint64(len(rest)) {
		return nil, nil, fmt.Errorf("%w: %d bytes of JSON in a message of %d", ErrMalformed, size, len(data))
	}
	return rest[:size:size], rest[size:len(rest):len(rest)], nil
}

// EncodeHead writes the part of m that goes before a payload.
func EncodeHead(m Message) ([]byte, error) {
	return appendHead(make([]byte, 0, payloadHead+m.room()), m)
}

func appendHead(b []byte, m Message) ([]byte, error) {
	b, err := appendMessage(append(b, payloadMark, 0, 0, 0, 0), m)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-payloadHead))
	return b, nil
}

// encodeWith writes m with its payload behind it, which is copied. The memory may
// be given back with reuseFrame.
func encodeWith(m Message) ([]byte, error) {
	b, err := appendHead(newFrame(int64(payloadHead+m.room()+len(m.Payload))), m)
	if err != nil {
		return nil, err
	}
	return append(b, m.Payload...), nil
}

// Release gives the memory of m back, payload and all. Nothing of it may be used
// any more. Without it the garbage collector does the same, later.
func (m *Message) Release() {
	reuseFrame(m.frame)
	*m = Message{}
}

// carry gives a payload to what was decoded; nil is none.
func carry(into any, payload []byte) error {
	if payload == nil {
		return nil
	}
	c, ok := into.(Carrier)
	if !ok {
		return fmt.Errorf("%w: a payload of %d bytes that nobody expects", ErrMalformed, len(payload))
	}
	return c.Carry(payload)
}

// Carry implements Carrier: each chunk takes as many bytes as it says.
func (r *ProcessReadResult) Carry(payload []byte) error {
	for i := range r.Chunks {
		c := &r.Chunks[i]
		if c.Size < 0 || c.Size > len(payload) || len(c.Chunk) > 0 {
			return fmt.Errorf("%w: chunk %d has %d bytes of the %d that are left", ErrMalformed, c.Seq, c.Size, len(payload))
		}
		c.Chunk, payload, c.Size = payload[:c.Size:c.Size], payload[c.Size:], 0
	}
	if len(payload) > 0 {
		return fmt.Errorf("%w: %d bytes belong to no chunk", ErrMalformed, len(payload))
	}
	return nil
}

// Ship implements Shipper.
func (r *ProcessReadResult) Ship() [][]byte {
	parts := make([][]byte, len(r.Chunks))
	for i := range r.Chunks {
		c := &r.Chunks[i]
		parts[i], c.Size, c.Chunk = c.Chunk, len(c.Chunk), nil
	}
	return parts
}

// Carry implements Carrier.
func (p *ProcessWriteParams) Carry(payload []byte) error { return carryAll(&p.Chunk, payload) }

// Carry implements Carrier.
func (p *WriteFileParams) Carry(payload []byte) error { return carryAll(&p.Data, payload) }

// Carry implements Carrier.
func (r *ReadFileResult) Carry(payload []byte) error { return carryAll(&r.Data, payload) }

// Ship implements Shipper.
func (r *ReadFileResult) Ship() [][]byte {
	parts := [][]byte{r.Data}
	r.Data = []byte{}
	return parts
}

func carryAll(into *[]byte, payload []byte) error {
	if len(*into) > 0 {
		return fmt.Errorf("%w: bytes in the JSON and behind it", ErrMalformed)
	}
	*into = payload
	return nil
}
