package keeper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	maxQuery    = 4 << 10 // bytes
	maxQueries  = 64      // at a time
	lookupTime  = 2 * time.Second
	streamTime  = 5 * time.Second // between queries over TCP
	answerTTL   = 30              // seconds; much less than idleName
	verdictTime = 2 * time.Second
	maxVerdicts = 1024
	maxPorts    = 64 // of one name
)

// serveNames answers lookups. What is asked never leaves the machine: the server says
// whether the policy knows the name, and resolves it itself when somebody connects.
func (w *way) serveNames(addr string) error {
	pc, err := net.ListenPacket("udp4", addr)
	if err != nil {
		return err
	}
	if !w.keep(pc) {
		return net.ErrClosed
	}
	w.wg.Go(func() { w.names.serveDatagrams(pc) })
	w.wg.Go(w.names.sweep)
	ln, err := w.listen(pc.LocalAddr().String())
	if err != nil {
		return err
	}
	w.wg.Go(func() { w.accept(ln, w.names.serveStream) })
	return nil
}

func (n *names) serveDatagrams(pc net.PacketConn) {
	slots := make(chan struct{}, maxQueries)
	buf := make([]byte, maxQuery)
	for {
		size, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !n.way.wait(wayPause) {
				return
			}
			continue
		}
		query := slices.Clone(buf[:size])
		select {
		case slots <- struct{}{}:
		default:
			continue // who asked asks again
		}
		n.way.wg.Go(func() {
			defer func() { <-slots }()
			if reply := n.reply(query); reply != nil {
				_, _ = pc.WriteTo(reply, from) // who asked may be gone
			}
		})
	}
}

func (n *names) serveStream(c net.Conn) {
	for {
		_ = c.SetDeadline(time.Now().Add(streamTime))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if len(query) > maxQuery {
			return
		}
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		reply := n.reply(query)
		if reply == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// reply answers one query. It is nil for what is none.
func (n *names) reply(query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil || head.Response {
		return nil
	}
	answer := dnsmessage.Header{
		ID: head.ID, Response: true, OpCode: head.OpCode,
		RecursionDesired: head.RecursionDesired, RecursionAvailable: true,
	}
	questions, err := p.AllQuestions()
	switch {
	case err != nil:
		answer.RCode = dnsmessage.RCodeFormatError
		return message(answer, nil, nil)
	case head.OpCode != 0 || len(questions) != 1 || questions[0].Class != dnsmessage.ClassINET:
		answer.RCode = dnsmessage.RCodeNotImplemented
		return message(answer, nil, nil)
	}
	q := questions[0]
	var body dnsmessage.ResourceBody
	body, answer.RCode = n.resolve(strings.ToLower(strings.TrimSuffix(q.Name.String(), ".")), q.Type)
	return message(answer, &q, body)
}

// message packs a reply.
func message(h dnsmessage.Header, q *dnsmessage.Question, body dnsmessage.ResourceBody) []byte {
	m := dnsmessage.Message{Header: h}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
	}
	if body != nil {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: answerTTL}, Body: body,
		}}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// resolve returns the record of a name, or nil when it has none of the kind.
func (n *names) resolve(name string, kind dnsmessage.Type) (dnsmessage.ResourceBody, dnsmessage.RCode) {
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		switch kind {
		case dnsmessage.TypeA:
			return &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}, dnsmessage.RCodeSuccess
		case dnsmessage.TypeAAAA:
			return &dnsmessage.AAAAResource{AAAA: [16]byte{15: 1}}, dnsmessage.RCodeSuccess
		}
		return nil, dnsmessage.RCodeSuccess
	}
	ports, err := n.ask(name)
	switch {
	case err != nil:
		n.way.once("ask the proxy for a name", err)
		return nil, dnsmessage.RCodeServerFailure
	case len(ports) == 0:
		return nil, dnsmessage.RCodeNameError
	case kind != dnsmessage.TypeA:
		return nil, dnsmessage.RCodeSuccess
	}
	addr, err := n.address(name, ports)
	if err != nil {
		n.way.once("serve a name", err)
		return nil, dnsmessage.RCodeServerFailure
	}
	return &dnsmessage.AResource{A: addr.As4()}, dnsmessage.RCodeSuccess
}

// verdict is what the proxy said of a name.
type verdict struct {
	ports []int
	until time.Time
}

// ask returns the ports at which the policy allows a name; none when it does not.
func (n *names) ask(name string) ([]int, error) {
	n.mu.Lock()
	v, ok := n.verdicts[name]
	n.mu.Unlock()
	if ok && time.Now().Before(v.until) {
		return v.ports, nil
	}
	ctx, cancel := context.WithTimeout(n.way.ctx, lookupTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sojourn/.sojourn/resolve?"+url.Values{"name": {name}}.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var ports []int
	switch resp.StatusCode {
	case http.StatusForbidden:
	case http.StatusOK:
		if err := json.NewDecoder(io.LimitReader(resp.Body, 8<<10)).Decode(&ports); err != nil {
			return nil, fmt.Errorf("read ports of a name: %w", err)
		}
		ports = ports[:min(len(ports), maxPorts)]
	default:
		return nil, fmt.Errorf("the proxy answered %s", resp.Status)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.verdicts) >= maxVerdicts {
		clear(n.verdicts)
	}
	n.verdicts[name] = verdict{ports, time.Now().Add(verdictTime)}
	return ports, nil
}
