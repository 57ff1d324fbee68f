package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxRespelt bounds how many numbers of one body are read in another form than
	// the decoder's: each costs another reading of the body.
	maxRespelt = 16
	// maxNumberText bounds the text of such a number.
	maxNumberText = 64
	// maxExact is up to where a whole number has a form with an exponent that every
	// reader takes for the same number.
	maxExact = 1 << 53
)

// unmarshal is [json.Unmarshal], but that a whole number is one in every form: what
// JSON Schema calls an integer may be written 1e3 or 1000.0. Numbers that belong to
// the caller, in raw JSON, stay as they are written.
func unmarshal(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	for range maxRespelt {
		u, ok := errors.AsType[*json.UnmarshalTypeError](err)
		if !ok {
			break
		}
		text, isNumber := strings.CutPrefix(u.Value, "number ")
		end := int(u.Offset)
		from := end - len(text)
		if !isNumber || from < 0 || end > len(data) || string(data[from:end]) != text {
			break
		}
		plain, ok := wholeNumber(text)
		if !ok || plain == text {
			break
		}
		data = slices.Concat(data[:from], []byte(plain), data[end:])
		reflect.ValueOf(v).Elem().SetZero() // of what the try before has read
		err = json.Unmarshal(data, v)
	}
	return err
}

// wholeNumber returns a number as an integer's digits, when it is one.
func wholeNumber(text string) (digits string, ok bool) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || len(text) > maxNumberText || math.Abs(f) >= maxExact || f != 0 && math.Abs(f) < 1 {
		return "", false
	}
	if f == 0 { // or too small for a float
		mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
		return "0", strings.Trim(mantissa, "-.0") == ""
	}
	exact, ok := new(big.Rat).SetString(text) // the bounds keep it small
	if !ok || !exact.IsInt() {
		return "", false
	}
	return exact.Num().String(), true
}

// mistyped says in plain words what is wrong with a value, and names its field where
// that is known: "rows: expected a whole number from 0 to 65535".
func mistyped(u *json.UnmarshalTypeError) error {
	text := "expected " + expected(u.Type)
	if number, ok := strings.CutPrefix(u.Value, "number "); ok && u.Type.Kind() == reflect.Float64 {
		text = fmt.Sprintf("the number %.64s is too large", number)
	}
	if u.Field == "" {
		return errors.New(text)
	}
	return errors.New(u.Field + ": " + text)
}

// expected names what a Go type takes.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		most := int64(math.MaxInt64) >> (64 - t.Bits())
		return fmt.Sprintf("a whole number from %d to %d", -most-1, most)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	}
	return "another type of value"
}

// exponent is how a validator writes large bounds.
var exponent = regexp.MustCompile(`[0-9]+(\.[0-9]+)?e\+[0-9]+`)

// plainNumbers writes the numbers of a validator's message in decimals.
func plainNumbers(message string) string {
	if !strings.HasPrefix(message, "expected number ") {
		return message
	}
	return exponent.ReplaceAllStringFunc(message, func(text string) string {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return text
		}
		return strconv.FormatFloat(f, 'f', -1, 64)
	})
}
