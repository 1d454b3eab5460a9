"""Texts unlike anyone's own: a model in int8 must expect them, for users send them."""

# ruff: noqa: RUF001

from __future__ import annotations

from collections.abc import Callable
from random import Random
from string import ascii_uppercase, punctuation

_EACH = 10  # texts of each kind
# two lines of a language: the first calibrates, the second judges
_SENTENCES = """
The invoice was sent to the wrong address last week.
Nobody told us that the office closes at noon on Fridays.
The old bridge, which was built in 1887 (and rebuilt twice), is closed to cars, but a ferry still runs in summer.
In 2009 the band was signed by a small label; their second album, "Northern Lights", is known as the best of the three.
She was born in a village near the coast, where her father was a fisherman, and moved to the city at the age of nine.
It is the largest lake in the region - 42 km long and up to 7 km wide - and is fed by rivers that rise in the hills.
A woman in a red coat is standing beside two children who are feeding the ducks in the park.
An old man with a hat plays the accordion while people are walking past the shops.
The committee, however, has not decided whether the new rules will apply to those who are already members.
He said that there would be no show that night, as most of the players had fallen ill on the way.
The film is a comedy about two brothers who are forced to share a house; it was shown in 41 countries, won a prize, \
and is still one of the most watched of its kind, although critics did not like it.
Born in Leeds, he was first a teacher (he taught music, then history) and is now a writer whose books are read by \
children all over the world, as well as by their parents.
Most of these birds are small and brown, but the male of one species is bright blue. They feed on seeds, insects and \
fruit, and are found in forests, on farms and, more and more, in cities.
The war had ended by the time that the ship, the last of her class, was launched; she was used as a hospital, was sold \
to a museum in 1952, and is today a hotel.
Two dogs run through the snow, one of them with a stick in its mouth, while a boy in a green jacket is laughing at \
them from the top of a small hill.
There is a man on a ladder; below him, several people are looking up, and a girl with a yellow bag is taking a \
photograph of all of them.
I think that they will not come, since it is raining and none of them has a car, but you can ask her if she would like \
to go with us to the show on Friday.
It's true that we've seen better games this season; what I'm saying is that the team, under the new coach, plays as if \
it were enjoying itself, and that isn't nothing.
How do I reset the password of my account?
Why does the app stop when I rotate the screen?
Die Lieferung kommt erst nächste Woche, weil ein Teil fehlt.
Können Sie mir bitte sagen, wann der Zug nach Köln abfährt?
Der Vertrag verlängert sich, wenn er nicht rechtzeitig gekündigt wird.
Im Straßenverkehr gilt gegenseitige Rücksicht als oberstes Gebot.
Le magasin est fermé le dimanche, sauf pendant les fêtes.
Je n'ai pas encore reçu la réponse à ma question d'hier.
¿Dónde puedo cambiar la contraseña de mi cuenta?
El niño juega en el jardín mientras su abuela prepara la cena.
O preço não inclui as taxas de entrega nem o seguro.
Amanhã vamos à praia se não chover de manhã.
La riunione è stata spostata a giovedì pomeriggio.
Mi può dire perché il pagamento è stato rifiutato?
Zamówienie zostało wysłane wczoraj, ale jeszcze nie dotarło.
Książka, którą mi pożyczyłeś, bardzo mi się podobała.
Siparişim nerede ve ne zaman gelecek?
Öğretmen öğrencilere yeni ödevi açıkladı.
Xin cho tôi biết khi nào cửa hàng mở cửa.
Chúng tôi đã đi bộ dọc theo bờ sông vào buổi tối.
Заказ был отправлен вчера, но ещё не доставлен.
Сколько стоит билет до Москвы на завтра?
Книга лежить на столі біля вікна.
Завтра ми поїдемо до бабусі в село.
Πού μπορώ να αλλάξω τον κωδικό μου;
Το τρένο έφυγε με δέκα λεπτά καθυστέρηση.
متى يفتح المتجر أبوابه في يوم الجمعة؟
وصلت الرسالة بعد ثلاثة أيام من إرسالها.
החנות סגורה בשבת ובחגים.
מתי יוצאת הרכבת האחרונה לחיפה?
दुकान रविवार को बंद रहती है।
मेरा पैकेट अभी तक क्यों नहीं आया?
ร้านเปิดทุกวันยกเว้นวันอาทิตย์
ฉันจะเปลี่ยนรหัสผ่านได้อย่างไร
请问我的订单什么时候可以送到?
他昨天晚上在图书馆看了三个小时的书。
パスワードを忘れた場合はどうすればいいですか。
昨日は雨が降っていたので、家で本を読みました。
주문한 상품이 아직 도착하지 않았습니다.
내일 아침에 회의가 있어서 일찍 일어나야 해요.
""".strip().split("\n")


def mixed_texts(*, judged: bool) -> list[str]:
    """Return numbers, codes, other scripts, SHOUTING, single words, marks, very short and long texts.

    Args:
        judged: whether to return those that a model is judged on; the others, of the same kinds, calibrate it.
    """
    random, sentences = Random(int(judged)), _SENTENCES[judged::2]
    words = [word for sentence in sentences for word in sentence.split()]

    def number(digits: int) -> int:
        return random.randrange(10 ** random.randint(1, digits))

    def some(alphabet: str, most: int) -> str:
        return "".join(random.choices(alphabet, k=random.randint(1, most)))

    def code() -> str:
        return f"{some(ascii_uppercase, 4)}-{number(5)}{random.choice('/._-')}{some(ascii_uppercase, 2)}{number(3)}"

    kinds: list[Callable[[], str]] = [
        lambda: str(number(12)),
        lambda: f"{random.choice('€$£')} {random.uniform(0, 10 ** random.randint(1, 7)):,.2f}",
        lambda: f"{random.uniform(-50, 150):.{random.randint(0, 4)}f} {random.choice(['%', '°C', 'kg', 'ms', 'mm'])}",
        lambda: f"{random.randint(1, 28):02}{random.choice('./-')}{random.randint(1, 12):02}.{number(4)}",
        lambda: f"{random.randint(1990, 2040)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}T{number(2)}:00Z",
        lambda: f"+{number(2)} ({number(4)}) {number(8)}",
        lambda: " ".join(str(number(4)) for _ in range(random.randint(3, 60))),
        code,
        lambda: " ".join(code() for _ in range(random.randint(2, 20))),
        lambda: f"{random.getrandbits(random.choice([32, 128, 256])):x}",
        lambda: f"https://{some('aeinrst', 9)}.com/{some('abcdef/', 20)}?id={number(9)}&q={random.choice(words)}",
        lambda: f"/usr/{some('aeinrst', 6)}/lib{some('aeinrst', 8)}-{number(2)}.{number(2)}.{number(2)}.so",
        lambda: f"if ({some('aeinrst', 5)}_{some('xyz', 2)}[{number(2)}] != {number(3)}) {{ return {code()!r}; }}",
        lambda: random.choice(sentences).upper(),
        lambda: random.choice(words),
        lambda: some(punctuation + "…–“”•→✓😀", 12),
        lambda: " ".join(random.choices(words, k=random.choice([2, 3, 100, 300]))),
    ]
    made = [kind() for kind in kinds for _ in range(_EACH)]
    others = set(mixed_texts(judged=False) if judged else ())
    return [text for text in dict.fromkeys([*sentences, *made]) if text not in others]
