package cloud

import (
	"context"
	"net/http"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

type listInteractionsInput struct {
	api.SessionPath
	State string `query:"state" enum:"open,answered,expired,withdrawn" doc:"Only those in this state."`
}

// InteractionsBody lists interactions, oldest first.
type InteractionsBody struct {
	Interactions []Interaction `json:"interactions"`
}

type interactionsOutput struct{ Body InteractionsBody }

type answerInput struct {
	api.SessionPath
	InteractionID string `path:"interactionId"`
	Body          Answer
}

// InteractionBody is an answer with one interaction.
type InteractionBody struct {
	Interaction Interaction `json:"interaction"`
}

type interactionOutput struct{ Body InteractionBody }

func (h *handler) interactions(s *api.Service) {
	const path = "/v1/sessions/{sessionId}/interactions"
	api.Register(s, api.Operation{
		ID: "listInteractions", Method: http.MethodGet, Path: path,
		Scope: ScopeSessionsRead, Summary: "List the questions that runs asked",
	}, h.listInteractions)
	api.Register(s, api.Operation{
		ID: "answerInteraction", Method: http.MethodPut, Path: path + "/{interactionId}/answer",
		Scope: ScopeInteractionsAnswer, Summary: "Answer a question",
		Description: "With an offered optionId, or with a text where the question takes one. The same answer again changes nothing; another one is refused.",
	}, h.answerInteraction)
}

func (h *handler) listInteractions(ctx context.Context, in *listInteractionsInput) (*interactionsOutput, error) {
	found, err := h.engine.Interactions(ctx, ref(ctx, in.SessionID), sojourn.InteractionState(in.State))
	if err != nil {
		return nil, err
	}
	out := &interactionsOutput{Body: InteractionsBody{Interactions: []Interaction{}}}
	for _, i := range found {
		out.Body.Interactions = append(out.Body.Interactions, interaction(i))
	}
	return out, nil
}

func (h *handler) answerInteraction(ctx context.Context, in *answerInput) (*interactionOutput, error) {
	i, err := h.engine.Answer(ctx, ref(ctx, in.SessionID), sojourn.InteractionID(in.InteractionID),
		sojourn.Answer{OptionID: in.Body.OptionID, Text: in.Body.Text})
	if err != nil {
		return nil, err
	}
	return &interactionOutput{Body: InteractionBody{interaction(i)}}, nil
}
