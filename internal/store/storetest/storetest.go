// Package storetest is the suite that every store passes.
//
// # Words
//
// Each test opens a store of its own, empty, and leaves it to the test's cleanup.
//
// # Invariants
//
// The suite knows the contract of package store and nothing else: no SQL, no
// file, no driver. What it asserts is what the rest of the program relies on.
//
// # Concurrency and failure
//
// The tests of a Run share nothing and could run at the same time. A test that
// fails says what it got before what it wanted.
package storetest

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// Open opens an empty store that tells onEvents of events, and closes it when
// the test ends. onEvents may be nil.
type Open func(t *testing.T, onEvents func(sojourn.SessionID, []sojourn.Event)) store.Store

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Open)
	}{
		{"EveryFieldIsKept", testEveryFieldIsKept},
		{"FactsFollowDecisions", testFactsFollowDecisions},
		{"SessionsArePagedNewestFirst", testSessionsArePaged},
		{"TurnsAndRunsArePaged", testTurnsAndRunsArePaged},
		{"MissingRowsAreNotFound", testMissingRowsAreNotFound},
		{"ChangeIsAllOrNone", testChangeIsAllOrNone},
		{"StaleChangeIsRefused", testStaleChangeIsRefused},
		{"OneActiveRunPerSession", testOneActiveRun},
		{"OneOpenLeasePerSession", testOneOpenLease},
		{"OpenQuestionIsAskedOnce", testOpenQuestionIsAskedOnce},
		{"SealedCheckpointsAreOneChain", testCheckpointChain},
		{"EndedLeasesWaitForDestruction", testUndestroyedLeases},
		{"LeaseStateEndsWithItsLease", testLeaseState},
		{"LeaseHasWorkedOnceItsRunWasActive", testLeaseWorked},
		{"EveryFieldOfAnExecIsKept", testEveryFieldOfAnExecIsKept},
		{"FactsHoldTheExecsThatMayStart", testFactsHoldWhatMayStart},
		{"InputGoesWithItsExecAndOutputStays", testExecInput},
		{"OneLiveSessionPerClient", testOneLiveSessionPerClient},
		{"SessionsAreFoundByWhatTheyAreAt", testSessionsWhere},
		{"PurgeLeavesTheSessionAndItsLeases", testPurge},
		{"EventsHaveNoGapUnderContention", testEventsUnderContention},
		{"EventsArePagedByCountAndBytes", testEventPages},
		{"EventsArePublishedInOrder", testPublishing},
		{"FailureUndoesOnlyItsCaller", testIsolation},
		{"PanicIsAnError", testPanic},
		{"EndedContextStartsNothing", testEndedContext},
		{"ViewCannotWrite", testViewCannotWrite},
		{"ViewSeesAcknowledgedCommits", testReadYourWrites},
		{"ClosedStoreRefuses", testClosed},
		{"RepeatedCommandIsCarriedOutOnce", testIdempotencyRace},
		{"IdempotencyKeyIsOfOneCommand", testIdempotency},
		{"KeysAreFoundByHash", testKeys},
		{"WorkIsClaimedOnce", testWorkIsClaimedOnce},
		{"FenceIsNeverUsedTwice", testFences},
		{"ScheduleDuringWorkIsNotLost", testScheduleDuringWork},
		{"WorkRetriesAndDies", testWorkRetries},
		{"OrphanedClaimsAreDueAtOnce", testOrphans},
		{"WorkFollowsItsModel", testWorkModel},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}

// update runs fn or fails the test.
func update(t testing.TB, s store.Store, fn func(*store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), fn); err != nil {
		t.Fatalf("update: %v", err)
	}
}

// view runs fn or fails the test.
func view(t testing.TB, s store.Store, fn func(*store.Tx) error) {
	t.Helper()
	if err := s.View(t.Context(), fn); err != nil {
		t.Fatalf("view: %v", err)
	}
}

// read returns what fn reads.
func read[T any](t testing.TB, s store.Store, fn func(*store.Tx) (T, error)) (v T) {
	t.Helper()
	view(t, s, func(tx *store.Tx) (err error) {
		v, err = fn(tx)
		return err
	})
	return v
}

// create makes a session that nothing was submitted to.
func create(t testing.TB, s store.Store, id sojourn.SessionID) {
	t.Helper()
	update(t, s, func(tx *store.Tx) error {
		d, err := sojourn.Create(tx.Now(), sojourn.NewSession{
			ID: id, Project: sojourn.DefaultProject, Contract: sojourn.ContractCloud, Runtime: "script",
		})
		if err != nil {
			return err
		}
		return tx.Apply(d.Change())
	})
}

// decide applies a decision on a session.
func decide(t testing.TB, s store.Store, id sojourn.SessionID, fn func(*sojourn.Decision) error) {
	t.Helper()
	if err := tryDecide(t, s, id, fn); err != nil {
		t.Fatalf("decide on %s: %v", id, err)
	}
}

func tryDecide(t testing.TB, s store.Store, id sojourn.SessionID, fn func(*sojourn.Decision) error) error {
	t.Helper()
	return s.Update(t.Context(), func(tx *store.Tx) error {
		f, err := tx.Facts(id)
		if err != nil {
			return err
		}
		d := f.Decide(tx.Now())
		if err := fn(d); err != nil {
			return err
		}
		return tx.Apply(d.Change())
	})
}

// submit gives a session a turn; turn and run are named after n.
func submit(t testing.TB, s store.Store, id sojourn.SessionID, n int) (sojourn.TurnID, sojourn.RunID) {
	t.Helper()
	turn, run := sojourn.TurnID(fmt.Sprintf("%s-turn-%03d", id, n)), sojourn.RunID(fmt.Sprintf("%s-run-%03d", id, n))
	decide(t, s, id, func(d *sojourn.Decision) error {
		return d.Submit(turn, run, []sojourn.Part{{Type: "text", Text: "go on"}})
	})
	return turn, run
}

// filled returns a T in which no field is zero, so that a column that is
// forgotten shows. Instants are whole microseconds; seed tells values apart.
func filled[T any](seed int) (v T) {
	fill(reflect.ValueOf(&v).Elem(), &seed)
	return v
}

func fill(v reflect.Value, seed *int) {
	*seed++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.UnixMicro(1_700_000_000_000_000 + int64(*seed)).UTC()))
		return
	case time.Duration:
		v.Set(reflect.ValueOf(time.Duration(*seed) * time.Microsecond))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d é\u2028\"'", *seed))
	case reflect.Uint16:
		v.SetUint(uint64(*seed))
	case reflect.Int64, reflect.Int:
		v.SetInt(int64(*seed))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8:
		v.SetUint(uint64(*seed % 256))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), seed)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), seed)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), seed)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, seed)
		fill(value, seed)
		v.SetMapIndex(key, value)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 { // JSON
			v.SetBytes(fmt.Appendf(nil, `{"seed": %d}`, *seed))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), seed)
		fill(v.Index(1), seed)
	default:
		panic("storetest: no value for " + v.Type().String())
	}
}

// same fails the test unless got is want, field by field.
func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}
